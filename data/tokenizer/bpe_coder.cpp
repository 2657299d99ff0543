#include "data/tokenizer/bpe_coder.h"

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "data/tokenizer/bpe/added_tokens.h"
#include "data/tokenizer/bpe/bpe_model.h"
#include "data/tokenizer/bpe/byte_characters.h"
#include "data/tokenizer/bpe/normalizer.h"
#include "data/tokenizer/bpe/pre_tokenizer.h"
#include "data/tokenizer/bpe/word_cache.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/workspace_pool.h"

namespace mcpp {
namespace {

// Tokens that end a document in the vocabularies of base models, ours first. tokenizer.json does not state them.
constexpr std::array<std::string_view, 8> kEodNames{kEodPiece,
                                                    "<|endoftext|>",
                                                    "<|end_of_text|>",
                                                    "</s>",
                                                    "<eos>",
                                                    "<|eos|>",
                                                    "<\xEF\xBD\x9C"
                                                    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                                    "<|eot_id|>"};

/// Working memory of one thread, which keeps its cache of words.
struct Workspace {
  RegexMemory regex;
  WordCache cache;
  BpeModel::Workspace merging;
  std::string normalized;
};

/// Converts words to ids, through the cache.
class WordEncoder final : public WordSink {
 public:
  /// If set, `mark` denotes spaces, and words are split before each run of it, since no piece spans that position.
  WordEncoder(const BpeModel& model, std::string_view mark, Workspace& workspace, std::vector<i32>& ids)
      : model_(model), mark_(mark), workspace_(workspace), ids_(ids) {}

  void add_word(std::string_view word) override {
    while (!mark_.empty()) {
      const std::size_t begin = skip_marks(word);
      const std::size_t end = word.find(mark_, begin);
      if (end >= word.size()) break;
      add_part(word.substr(0, end));
      word.remove_prefix(end);
    }
    if (!word.empty()) add_part(word);
  }

 private:
  std::size_t skip_marks(std::string_view word) const {
    std::size_t at = 0;
    while (word.substr(at).starts_with(mark_)) at += mark_.size();
    return std::max<std::size_t>(at, 1);
  }

  void add_part(std::string_view word) {
    if (word.size() > WordCache::kMaxWordBytes) return model_.encode(word, workspace_.merging, ids_);
    const u64 hash = WordCache::hash(word);
    if (const auto known = workspace_.cache.find(word, hash)) {
      ids_.insert(ids_.end(), known->begin(), known->end());
      return;
    }
    const std::size_t before = ids_.size();
    model_.encode(word, workspace_.merging, ids_);
    workspace_.cache.insert(word, hash, std::span(ids_).subspan(before));
  }

  const BpeModel& model_;
  std::string_view mark_;
  Workspace& workspace_;
  std::vector<i32>& ids_;
};

/// Returns the tokens that are searched in the original text or, if `normalized`, in the normalized text, spelled
/// accordingly.
std::vector<AddedToken> added_tokens(const BpeDescription& description, const Normalizer& normalizer, bool normalized) {
  std::vector<AddedToken> tokens;
  RegexMemory memory;
  for (AddedToken token : description.added) {
    if (token.normalized != normalized) continue;
    std::string buffer;
    if (normalized) token.content = std::string(normalizer.apply(token.content, SegmentStart::Split, buffer, memory));
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

/// Returns the spelling of a space if no piece has a space after a different character, else "".
std::string split_mark(const BpeDescription& description) {
  const std::string mark = description.space_mark.empty() ? " " : description.space_mark;
  if (description.is_byte_level || description.ignore_merges) return "";
  if (std::ranges::count(description.pieces, mark) == 0) return "";
  const auto spans_spaces = [&](const std::string& piece) {
    std::size_t word = 0;
    while (piece.compare(word, mark.size(), mark) == 0) word += mark.size();
    return piece.find(mark, word) != std::string::npos;
  };
  return std::ranges::any_of(description.pieces, spans_spaces) ? "" : mark;
}

std::string decoded(const BpeDescription& description, const std::string& piece) {
  if (description.is_byte_level) return bytes_of_characters(piece).value_or(piece);
  if (description.byte_fallback && piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>'))
    return {static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16))};
  const std::string& mark = description.space_mark;
  std::string text;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t next = mark.empty() ? piece.size() : std::min(piece.find(mark, at), piece.size());
    text += piece.substr(at, next - at);
    if (next < piece.size()) text += ' ';
    at = next + mark.size();
  }
  return text;
}

class BpeCoder final : public TextCoder {
 public:
  BpeCoder(BpeDescription description, const std::string& source);

  i64 vocab_size() const override { return static_cast<i64>(description_.pieces.size()); }
  i32 eod() const override { return eod_; }
  i32 id(std::string_view piece) const override {
    const auto it = ids_.find(piece);
    return it == ids_.end() ? -1 : it->second;
  }
  std::string piece(i32 id) const override { return description_.pieces[static_cast<std::size_t>(id)]; }
  std::string_view bytes(i32 id) const override { return bytes_[static_cast<std::size_t>(id)]; }
  bool is_control(i32 id) const override { return is_control_[static_cast<std::size_t>(id)]; }
  bool drops_first_space() const override { return description_.drops_first_space; }
  std::vector<i32> prefix_tokens() const override { return description_.prefix_tokens; }
  void encode(std::string_view text, const TextPart& part, std::vector<i32>& ids) const override;
  std::vector<std::pair<std::string, std::string>> describe() const override;

 private:
  void fill_pieces();
  i32 find_eod() const;
  void encode_between(std::string_view text, SegmentStart start, Workspace& workspace, std::vector<i32>& ids) const;

  BpeDescription description_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  AddedTokens added_, normalized_added_;
  std::string mark_;
  std::unordered_map<std::string_view, i32> ids_;
  std::vector<std::string> bytes_;
  std::vector<bool> is_control_;
  i32 eod_ = -1;
  mutable WorkspacePool<Workspace> workspaces_;
};

BpeCoder::BpeCoder(BpeDescription description, const std::string& source)
    : description_(std::move(description)),
      normalizer_(description_.normalizer, source),
      pre_tokenizer_(description_.pre_tokenizer, source),
      model_(description_, source),
      added_(added_tokens(description_, normalizer_, false)),
      normalized_added_(added_tokens(description_, normalizer_, true)),
      mark_(split_mark(description_)) {
  fill_pieces();
  eod_ = find_eod();
  description_.merges.clear();
  description_.merges.shrink_to_fit();
  for (const i32 id : description_.prefix_tokens)
    check_input(id < vocab_size(), source, ": its template inserts the token ", id,
                " before texts, but no piece has this id");
}

void BpeCoder::fill_pieces() {
  is_control_.resize(description_.pieces.size());
  for (const std::string& piece : description_.pieces) {
    if (!piece.empty()) ids_.emplace(piece, static_cast<i32>(bytes_.size()));
    bytes_.push_back(decoded(description_, piece));
  }
  for (const AddedToken& token : description_.added) {
    const auto id = static_cast<std::size_t>(token.id);
    is_control_[id] = token.special;
    bytes_[id] = token.special ? "" : token.content;
  }
}

i32 BpeCoder::find_eod() const {
  for (const std::string_view name : kEodNames)
    if (id(name) >= 0) return id(name);
  const auto is_special = [](const AddedToken& token) { return token.special; };
  const auto only = std::ranges::find_if(description_.added, is_special);
  return std::ranges::count_if(description_.added, is_special) == 1 ? only->id : -1;
}

void BpeCoder::encode_between(std::string_view text, SegmentStart start, Workspace& workspace,
                              std::vector<i32>& ids) const {
  WordEncoder encoder(model_, mark_, workspace, ids);
  const std::string_view normalized = normalizer_.apply(text, start, workspace.normalized, workspace.regex);
  normalized_added_.split(
      normalized,
      [&](std::string_view part, std::size_t offset) {
        pre_tokenizer_.split(part, offset == 0 ? start : SegmentStart::Split, workspace.regex, encoder);
      },
      [&](i32 id) { ids.push_back(id); });
}

void BpeCoder::encode(std::string_view text, const TextPart& text_part, std::vector<i32>& ids) const {
  std::unique_ptr<Workspace> workspace = workspaces_.acquire();
  const SegmentStart start = text_part.begins ? SegmentStart::Document : SegmentStart::Continued;
  added_.split(
      text,
      [&](std::string_view part, std::size_t offset) {
        encode_between(part, offset == 0 ? start : SegmentStart::Split, *workspace, ids);
      },
      [&](i32 id) { ids.push_back(id); });
  workspaces_.release(std::move(workspace));
}

std::vector<std::pair<std::string, std::string>> BpeCoder::describe() const {
  static constexpr std::array<std::string_view, 4> kForms{"NFC", "NFD", "NFKC", "NFKD"};
  std::string normalizer;
  for (const NormalizerStep& step : description_.normalizer) {
    const auto* form = std::get_if<UnicodeForm>(&step);
    normalizer += str(normalizer.empty() ? "" : ", ", form ? kForms[static_cast<std::size_t>(*form)]
                                                      : std::holds_alternative<PrependStep>(step) ? "prepend"
                                                                                                  : "replace");
  }
  const auto special = std::ranges::count_if(description_.added, [](const AddedToken& token) { return token.special; });
  return {{"kind", description_.is_byte_level ? "byte-level BPE" : "BPE of characters"},
          {"normalizer", normalizer.empty() ? "none" : normalizer},
          {"words", description_.rules},
          {"added tokens", str(description_.added.size(), ", of them special ", special)}};
}

}  // namespace

std::unique_ptr<TextCoder> make_bpe_coder(BpeDescription description, const std::string& source) {
  return std::make_unique<BpeCoder>(std::move(description), source);
}

}  // namespace mcpp
