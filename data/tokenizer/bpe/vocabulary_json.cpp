#include "data/tokenizer/bpe/vocabulary_json.h"

#include <algorithm>

#include "base/check.h"

namespace mcpp {
namespace {

// Limit on unused ids, so that a short file cannot exhaust the memory.
constexpr std::size_t kMaxUnused = 1'000'000;

}  // namespace

void add_piece(i64 id, const std::string& piece, const std::string& source, BpeDescription& description) {
  auto& pieces = description.pieces;
  const auto index = static_cast<std::size_t>(id);
  check_input(!piece.empty(), source, ": the piece of id ", id, " is empty");
  check_input(id >= 0 && index < pieces.size() + kMaxUnused, source, ": the id of \"", piece, "\" is ", id,
              ", far from all others");
  if (index >= pieces.size()) pieces.resize(index + 1);
  check_input(pieces[index].empty() || pieces[index] == piece, source, ": the id ", id, " belongs to two pieces, \"",
              pieces[index], "\" and \"", piece, "\"");
  pieces[index] = piece;
}

void read_pieces(const Json& vocab, const std::string& source, BpeDescription& description) {
  check_input(vocab.is_object() && !vocab.empty(), source, ": its vocabulary is no object of pieces and ids");
  for (const auto& [piece, id] : vocab.items()) {
    check_input(id.is_number_unsigned() && id.get<u64>() < vocab.size() + kMaxUnused, source, ": the id of \"", piece,
                "\" is ", id.dump(), ", which is none");
    if (id.get<u64>() >= description.pieces.size()) description.pieces.resize(id.get<std::size_t>() + 1);
    add_piece(id.get<i64>(), piece, source, description);
  }
}

void check_no_holes(const BpeDescription& description, i64 end, const std::string& source) {
  for (i64 id = 0; id < end; ++id) {
    check_input(!description.pieces[static_cast<std::size_t>(id)].empty(), source, ": no piece has the id ", id,
                ", though larger ones are taken");
  }
}

MergeReader::MergeReader(BpeDescription& description, const std::string& source)
    : description_(description), source_(source) {
  ids_.reserve(description.pieces.size());
  for (std::size_t id = 0; id < description.pieces.size(); ++id)
    if (!description.pieces[id].empty()) ids_.emplace(description.pieces[id], static_cast<u32>(id));
}

u32 MergeReader::id_of(const std::string& piece, const std::string& left, const std::string& right) const {
  const auto found = ids_.find(piece);
  check_input(found != ids_.end(), source_, ": merge ", description_.merges.size(), ", of \"", left, "\" and \"", right,
              "\", needs the piece \"", piece, "\", which the vocabulary has not");
  return found->second;
}

void MergeReader::add(const std::string& left, const std::string& right) {
  const auto rank = static_cast<u32>(description_.merges.size());
  description_.merges.push_back(
      {id_of(left, left, right), id_of(right, left, right), rank, id_of(left + right, left, right)});
}

void MergeReader::add_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  check_input(space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                  line.find(' ', space + 1) == std::string_view::npos,
              source_, ": merge ", description_.merges.size(), " is not two pieces with a space between them: ", line);
  add(std::string(line.substr(0, space)), std::string(line.substr(space + 1)));
}

}  // namespace mcpp
