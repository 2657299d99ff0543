#include "data/tokenizer/tokenizer_file.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer/bpe/rank_files.h"
#include "data/tokenizer/bpe/tokenizer_json.h"
#include "data/tokenizer/bpe_coder.h"
#include "data/tokenizer/declared_tokens.h"
#include "data/tokenizer/sentencepiece_coder.h"

namespace mcpp {
namespace {

constexpr std::string_view kMergesHead = "#version";

std::string read_file(const Path& path) {
  std::error_code unknown;
  check_input(std::filesystem::is_symlink(path, unknown) || std::filesystem::exists(path, unknown), "tokenizer model ",
              path.string(), ": there is no such file");
  return read_text_file(path);
}

/// Returns true for a vocab.json, which maps pieces to numbers; a tokenizer.json has objects, "model" among them. Text
/// that is not valid JSON, such as a truncated file, is no vocab.json.
bool is_vocab_json(const std::string& content) {
  constexpr std::string_view kModel = "\"model\"";
  if (tokenizer_kind(content) != TokenizerKind::TokenizerJson) return false;
  for (std::size_t at = content.find(kModel); at != std::string::npos; at = content.find(kModel, at + 1)) {
    const std::size_t value = content.find_first_not_of(" \t\r\n:", at + kModel.size());
    if (value != std::string::npos && content[value] == '{') return false;
  }
  const auto keep_members = [](int depth, Json::parse_event_t, const Json&) { return depth <= 1; };
  const Json json = Json::parse(content, keep_members, /*allow_exceptions=*/false);
  return json.is_object() && std::ranges::any_of(json, [](const Json& member) { return member.is_number(); });
}

/// Returns vocab.json and merges.txt if `content`, that of `path`, is one of them.
std::optional<std::pair<Path, Path>> pair_of(const Path& path, const std::string& content) {
  if (content.starts_with(kMergesHead)) return std::pair(path.parent_path() / "vocab.json", path);
  if (is_vocab_json(content)) return std::pair(path, path.parent_path() / "merges.txt");
  return std::nullopt;
}

/// Returns true if a tokenizer.json in the same folder has the added tokens.
bool has_tokenizer_json(const Path& path) {
  return std::filesystem::exists(path.parent_path() / "tokenizer.json");
}

BpeDescription parse_pair(const std::pair<Path, Path>& pair, std::optional<PreTokenization> rules) {
  const auto& [vocab, merges] = pair;
  for (const Path& file : {vocab, merges}) {
    check_input(std::filesystem::exists(file), "tokenizer model ", file.string(),
                ": there is no such file; a vocab.json and a merges.txt need each other");
  }
  BpeDescription description = parse_vocab_and_merges(read_file(vocab), read_file(merges), vocab.string(), rules);
  if (!has_tokenizer_json(vocab))
    add_declared_tokens(read_declared_tokens(vocab.parent_path()), vocab.string(), description);
  return description;
}

}  // namespace

TokenizerKind tokenizer_kind(std::string_view content) {
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && content[first] == '{') return TokenizerKind::TokenizerJson;
  return looks_like_ranks(content) ? TokenizerKind::Ranks : TokenizerKind::Sentencepiece;
}

std::string read_tokenizer_file(const Path& path) {
  std::string content = read_file(path);
  const auto pair = pair_of(path, content);
  if (pair) return to_tokenizer_json(parse_pair(*pair, {}));
  if (tokenizer_kind(content) != TokenizerKind::Sentencepiece || has_tokenizer_json(path)) return content;
  const DeclaredTokens declared = read_declared_tokens(path.parent_path());
  if (declared.added.empty()) return content;
  const SentencepieceModel model = parse_sentencepiece_model(content, path.string());
  return with_declared_tokens(model, declared, path.string()).value_or(std::move(content));
}

std::unique_ptr<TextCoder> make_text_coder(const std::string& content, const std::string& source) {
  const std::string name = "tokenizer model " + source;
  switch (tokenizer_kind(content)) {
    case TokenizerKind::TokenizerJson:
      return make_bpe_coder(parse_tokenizer_json(content, name), name);
    case TokenizerKind::Ranks:
      return make_bpe_coder(parse_ranks(content, name), name);
    case TokenizerKind::Sentencepiece:
      break;
  }
  return make_sentencepiece_coder(content, source);
}

Path find_tokenizer_file(const Path& folder) {
  const auto exists = [&](const char* name) { return std::filesystem::exists(folder / name); };
  const Path model = folder / "tokenizer.model", json = folder / "tokenizer.json";
  if (exists("tokenizer.model") && exists("tokenizer.json")) {
    const i64 pieces = make_text_coder(read_file(model), model.string())->vocab_size();
    return count_tokens(read_file(json), json.string()) > pieces ? json : model;
  }
  if (exists("tokenizer.model")) return model;
  if (exists("tokenizer.json")) return json;
  return exists("vocab.json") && exists("merges.txt") ? folder / "vocab.json" : Path();
}

std::string convert_to_tokenizer_json(const Path& path, std::optional<PreTokenization> rules) {
  const std::string content = read_file(path);
  if (const auto pair = pair_of(path, content)) return to_tokenizer_json(parse_pair(*pair, rules));
  check_input(tokenizer_kind(content) == TokenizerKind::Ranks, "tokenizer model ", path.string(),
              ": is neither a list of ranks nor a vocab.json with its merges.txt: nothing else has to be converted");
  return to_tokenizer_json(parse_ranks(content, "tokenizer model " + path.string(), rules));
}

}  // namespace mcpp
