#include "data/tokenizer/sentencepiece_coder.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "data/tokenizer/bpe/word_cache.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/sentencepiece_normalizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/unigram_model.h"
#include "data/tokenizer/workspace_pool.h"

namespace mcpp {
namespace {

/// Returns true if the library accepts the model. For some defects it throws instead.
bool load(sentencepiece::SentencePieceProcessor& processor, const std::string& model) {
  try {
    return processor.LoadFromSerializedProto(model).ok() && processor.GetPieceSize() > 0;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

/// Returns true if the library segments each word independently of the text. In a BPE model, an unused piece is split
/// again as it was last assembled, at any position.
bool segments_words_alone(const SentencepieceModel& model) {
  const auto is_unused = [](const SentencePiece& piece) { return piece.type == PieceType::Unused; };
  return pieces_end_at_spaces(model) &&
         !(model.type == SegmentationType::Bpe && std::ranges::any_of(model.pieces, is_unused));
}

class SentencepieceCoder final : public TextCoder {
 public:
  SentencepieceCoder(const std::string& content, const std::string& source);

  i64 vocab_size() const override { return static_cast<i64>(bytes_.size()); }
  i32 eod() const override { return eod_; }
  i32 id(std::string_view piece) const override {
    const i32 id = processor_.PieceToId(absl::string_view(piece.data(), piece.size()));
    return processor_.IdToPiece(id) == piece ? id : -1;  // unknown pieces have the id of <unk>
  }
  std::string piece(i32 id) const override { return processor_.IdToPiece(id); }
  std::string_view bytes(i32 id) const override { return bytes_[static_cast<std::size_t>(id)]; }
  bool is_control(i32 id) const override { return processor_.IsControl(id); }
  bool drops_first_space() const override { return adds_prefix_space_; }
  std::vector<i32> prefix_tokens() const override { return {}; }
  void encode(std::string_view text, const TextPart& part, std::vector<i32>& ids) const override;
  std::vector<std::pair<std::string, std::string>> describe() const override { return {{"kind", "sentencepiece"}}; }

 private:
  struct Workspace {
    std::string normalized;
    WordCache words;
    UnigramModel::Workspace unigram;
  };

  void fill_bytes(const SentencepieceModel& model);
  void append(std::string_view text, const TextPart& part, Workspace& workspace, std::vector<i32>& ids) const;
  void append_segmented(std::string_view text, std::vector<i32>& ids) const;
  void append_words(std::string_view text, WordCache& cache, std::vector<i32>& ids) const;
  void append_word(std::string_view word, WordCache& cache, std::vector<i32>& ids) const;

  std::string source_;
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<SentencepieceNormalizer> normalizer_;  // none if the library normalizes
  std::optional<UnigramModel> unigram_;                // none if the library segments
  std::vector<std::string> bytes_;                     // decoded form of each id
  std::vector<i32> space_mark_;                        // U+2581 in byte pieces; empty if it is a space
  bool adds_prefix_space_ = false;                     // the model adds a space before every text
  bool splits_words_ = false;                          // result of segments_words_alone()
  i32 joined_unknown_ = -1;                            // consecutive tokens of this id are joined
  mutable WorkspacePool<Workspace> workspaces_;
  i32 eod_ = -1;
};

SentencepieceCoder::SentencepieceCoder(const std::string& content, const std::string& source) : source_(source) {
  check_charsmaps(content, source);
  check_input(load(processor_, content), "tokenizer model ", source,
              ": not a sentencepiece model, tokenizer.json, vocab.json or rank list, or damaged");
  const SentencepieceModel model = parse_sentencepiece_model(content, source);
  // The library skips pieces that are not messages, so that ids would differ.
  check_input(model.pieces.size() == static_cast<std::size_t>(processor_.GetPieceSize()), "tokenizer model ", source,
              ": damaged");
  fill_bytes(model);
  if (model.escape_whitespaces) {
    check_input(load(processor_, without_normalization(content, source)), "tokenizer model ", source, ": damaged");
    normalizer_.emplace(model);
    if (model.type == SegmentationType::Unigram) unigram_.emplace(model);
    splits_words_ = segments_words_alone(model);
  }
  const bool has_bytes = id("<0xE2>") >= 0 && processor_.IsByte(id("<0xE2>"));
  if (keeps_space_marks(model)) space_mark_ = {id("<0xE2>"), id("<0x96>"), id("<0x81>")};
  if (!has_bytes) joined_unknown_ = processor_.unk_id();
  std::vector<i32> probe;
  encode("x", {}, probe);
  adds_prefix_space_ =
      !probe.empty() && bytes_[static_cast<std::size_t>(probe[0])].starts_with(' ') && !processor_.IsUnknown(probe[0]);
  eod_ = id(kEodPiece);
  if (eod_ < 0) eod_ = processor_.eos_id();
}

void SentencepieceCoder::fill_bytes(const SentencepieceModel& model) {
  for (const SentencePiece& piece : model.pieces) {
    if (const auto byte = byte_of(piece)) {
      bytes_.emplace_back(1, static_cast<char>(*byte));
    } else if (piece.type == PieceType::Control) {
      bytes_.emplace_back();
    } else {
      bytes_.push_back(piece.type == PieceType::Unknown ? " \xE2\x81\x87 " : with_spaces(piece.text));
    }
  }
}

void SentencepieceCoder::append_segmented(std::string_view text, std::vector<i32>& ids) const {
  std::vector<int> part;
  const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &part);
  check_input(status.ok(), "tokenizer model ", source_, ": damaged: it cannot encode: ", status.ToString());
  ids.insert(ids.end(), part.begin(), part.end());
}

/// Uses a cache, since most words recur.
void SentencepieceCoder::append_words(std::string_view text, WordCache& cache, std::vector<i32>& ids) const {
  const std::size_t begin = ids.size();
  while (!text.empty()) {
    const std::size_t end = end_of_word(text), before = ids.size();
    append_word(text.substr(0, end), cache, ids);
    text.remove_prefix(end);
    const bool joins_unknown = joined_unknown_ >= 0 && before > begin && before < ids.size() &&
                               ids[before] == joined_unknown_ && ids[before - 1] == joined_unknown_;
    if (joins_unknown) ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(before));
  }
}

void SentencepieceCoder::append_word(std::string_view word, WordCache& cache, std::vector<i32>& ids) const {
  if (word.size() > WordCache::kMaxWordBytes) return append_segmented(word, ids);
  const u64 hash = WordCache::hash(word);
  if (const auto known = cache.find(word, hash)) {
    ids.insert(ids.end(), known->begin(), known->end());
    return;
  }
  const std::size_t before = ids.size();
  append_segmented(word, ids);
  cache.insert(word, hash, std::span(ids).subspan(before));
}

void SentencepieceCoder::append(std::string_view text, const TextPart& part, Workspace& workspace,
                                std::vector<i32>& ids) const {
  const std::string_view normalized = normalizer_ ? normalizer_->apply(text, part, workspace.normalized) : text;
  if (unigram_)
    unigram_->encode(normalized, workspace.unigram, ids);
  else if (splits_words_)
    append_words(normalized, workspace.words, ids);
  else
    append_segmented(normalized, ids);
}

void SentencepieceCoder::encode(std::string_view text, const TextPart& part, std::vector<i32>& ids) const {
  std::unique_ptr<Workspace> workspace = workspaces_.acquire();
  for (std::size_t at = 0; !space_mark_.empty() && (at = text.find(kSpaceMark)) != std::string_view::npos;) {
    append(text.substr(0, at), part, *workspace, ids);
    ids.insert(ids.end(), space_mark_.begin(), space_mark_.end());
    text.remove_prefix(at + kSpaceMark.size());
  }
  append(text, part, *workspace, ids);
  workspaces_.release(std::move(workspace));
}

}  // namespace

std::unique_ptr<TextCoder> make_sentencepiece_coder(const std::string& content, const std::string& source) {
  return std::make_unique<SentencepieceCoder>(content, source);
}

}  // namespace mcpp
