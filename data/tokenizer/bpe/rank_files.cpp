#include "data/tokenizer/bpe/rank_files.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "base/check.h"
#include "data/tokenizer/bpe/byte_characters.h"
#include "data/tokenizer/bpe/tokenizer_json.h"

namespace mcpp {
namespace {

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines)
    if (line.ends_with('\r')) line.pop_back();
  return lines;
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  for (; !text.empty(); text.remove_prefix(4)) {
    const std::string_view digits = text.substr(0, std::min<std::size_t>(text.find('='), 4));
    if (digits.size() < 2 || (digits.size() < 4 && text.size() > 4) || (digits.size() == 2 && text[3] != '='))
      return std::nullopt;
    u32 bits = 0;
    for (const char digit : digits) {
      const std::size_t value = kDigits.find(digit);
      if (value == std::string_view::npos) return std::nullopt;
      bits = bits << 6 | static_cast<u32>(value);
    }
    bits <<= 6 * (4 - digits.size());
    for (std::size_t i = 0; i + 1 < digits.size(); ++i) bytes += static_cast<char>(bits >> (16 - 8 * i));
  }
  return bytes;
}

/// Returns the bytes and the rank of a line; std::nullopt if it is malformed.
std::optional<std::pair<std::string, i64>> parse_rank(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::optional<std::string> bytes = from_base64(line.substr(0, space));
  const auto rank = parse_number<i64>(line.substr(space + 1));
  if (!bytes || !rank || *rank < 0) return std::nullopt;
  return std::pair(std::move(*bytes), *rank);
}

/// Adds merges for tiktoken's rule: it joins any two neighbors that make the piece of the lowest rank.
void add_all_merges(BpeDescription& description, const std::vector<std::string>& pieces, const std::string& source) {
  std::unordered_map<std::string_view, u32> ids;
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const auto [known, is_new] = ids.emplace(pieces[id], static_cast<u32>(id));
    check_input(is_new, source, ": ", description.pieces[id], " has two ids, ", known->second, " and ", id);
  }
  for (std::size_t id = 0; id < pieces.size(); ++id) {
    const std::string_view piece = pieces[id];
    for (std::size_t at = 1; at < piece.size(); ++at) {
      const auto left = ids.find(piece.substr(0, at)), right = ids.find(piece.substr(at));
      if (left != ids.end() && right != ids.end())
        description.merges.push_back({left->second, right->second, static_cast<u32>(id), static_cast<u32>(id)});
    }
  }
  // In a list of merges, each with a separate rank, all merges that make the same piece are consecutive. Two
  // overlapping merges can make the same piece if it repeats itself, "ab a ba" for "aba"; then the left one must come
  // first.
  const auto repeats = [&](const Merge& merge) { return pieces[merge.result].starts_with(pieces[merge.right]); };
  std::ranges::stable_sort(description.merges, {},
                           [&](const Merge& merge) { return std::tuple(merge.rank, !repeats(merge)); });
}

void add_special(BpeDescription& description, const std::vector<std::pair<i32, std::string>>& tokens,
                 const std::string& source) {
  for (const auto& [id, token] : tokens) {
    add_piece(id, token, source, description);
    description.added.push_back({.id = id, .content = token});
  }
}

/// Marks pieces such as <|endoftext|> that no merge makes as special tokens.
void add_unmerged(BpeDescription& description) {
  std::vector<bool> is_merged(description.pieces.size());
  for (const Merge& merge : description.merges) is_merged[merge.result] = true;
  for (std::size_t id = 0; id < description.pieces.size(); ++id) {
    const std::string& piece = description.pieces[id];
    if (!is_merged[id] && piece.size() > 4 && piece.starts_with('<') && piece.ends_with('>'))
      description.added.push_back({.id = static_cast<i32>(id), .content = piece, .is_in_vocabulary = true});
  }
}

}  // namespace

BpeDescription parse_vocab_and_merges(std::string_view vocab, std::string_view merges, const std::string& source,
                                      std::optional<PreTokenization> rules) {
  BpeDescription description;
  read_pieces(parse_json(vocab, source), source, description);
  check_no_holes(description, static_cast<i64>(description.pieces.size()), source);
  const std::string both = source + " with its merges.txt";
  MergeReader reader(description, both);
  for (const std::string& line : lines_of(merges))
    if (!line.empty() && !line.starts_with("#version")) reader.add_line(line);
  const KnownVocabulary* known = known_vocabulary(static_cast<i64>(description.pieces.size()));
  set_rules(description, rules ? *rules : known ? known->rules : PreTokenization::Gpt2);
  add_unmerged(description);
  if (known && description.added.empty()) add_special(description, known->special, source);
  return description;
}

bool looks_like_ranks(std::string_view text) {
  std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return parse_rank(line).has_value();
}

BpeDescription parse_ranks(std::string_view text, const std::string& source, std::optional<PreTokenization> rules) {
  std::vector<std::string> pieces;
  const std::vector<std::string> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const auto parsed = parse_rank(lines[i]);
    check_input(parsed.has_value(), source, ":", i + 1,
                ": must have bytes in base64, a space and a number: ", lines[i]);
    const auto rank = static_cast<std::size_t>(parsed->second);
    check_input(rank < lines.size(), source, ":", i + 1, ": the id ", rank, " leaves smaller ones without a piece");
    if (rank >= pieces.size()) pieces.resize(rank + 1);
    check_input(pieces[rank].empty(), source, ":", i + 1, ": the id ", rank, " appears twice");
    pieces[rank] = parsed->first;
  }
  BpeDescription description;
  for (const std::string& piece : pieces) description.pieces.push_back(byte_characters(piece));
  const auto size = static_cast<i64>(pieces.size());
  check_no_holes(description, size, source);
  const KnownVocabulary* known = known_vocabulary(size);
  check_input(known || rules, source, ": is a list of ", size,
              " ranks, which does not define how text is split into words, and is not one of ", known_vocabularies(),
              "; convert it to a tokenizer.json with `megatron_cpp tokenizer convert`");
  set_rules(description, rules ? *rules : known->rules);
  description.ignore_merges = true;  // as tiktoken does
  add_all_merges(description, pieces, source);
  add_special(description,
              known ? known->special : std::vector{std::pair(static_cast<i32>(size), std::string("<|endoftext|>"))},
              source);
  return description;
}

}  // namespace mcpp
