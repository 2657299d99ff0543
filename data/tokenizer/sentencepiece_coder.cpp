#include "data/tokenizer/sentencepiece_coder.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "data/tokenizer/bpe/word_cache.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/workspace_pool.h"

namespace mcpp {
namespace {

constexpr std::size_t kBlockBytes = 1024;

/// "<0x0A>" -> '\n'
char byte_of_piece(const std::string& piece) {
  return static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16));
}

/// Whether the library takes the model. It throws for some defects, and answers for others.
bool load(sentencepiece::SentencePieceProcessor& processor, const std::string& model) {
  try {
    return processor.LoadFromSerializedProto(model).ok() && processor.GetPieceSize() > 0;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

/// U+2581, too, is a space to sentencepiece, and pieces are made of several.
bool ends_in_space(std::string_view text) {
  return text.ends_with(' ') || text.ends_with(kSpaceMark);
}

/// The first position from `from` on where a space follows a word, and another word the spaces; else the end.
std::size_t end_of_word(std::string_view text, std::size_t from) {
  std::size_t space = text.find(' ', from);
  while (space < text.size() && ends_in_space(text.substr(0, space))) space = text.find(' ', space + 1);
  return std::min(text.find_first_not_of(' ', space), text.size()) == text.size() ? text.size() : space;
}

/// Whether a word has the same ids alone and in its text: merges of byte pair encoding do not know of one another, and
/// the sums of a unigram model are the same where they are exact, as those of round_scores() are.
bool encodes_words_alone(const SentencepieceModel& model) {
  const auto is_exact = [](const SentencePiece& piece) {
    return piece.type != PieceType::UserDefined && std::round(piece.score * 1024) == piece.score * 1024;
  };
  return model.type == SegmentationType::Bpe ||
         (model.type == SegmentationType::Unigram && std::ranges::all_of(model.pieces, is_exact));
}

class SentencepieceCoder final : public TextCoder {
 public:
  SentencepieceCoder(const std::string& content, const std::string& source);

  i64 vocab_size() const override { return static_cast<i64>(bytes_.size()); }
  i32 eod() const override { return eod_; }
  i32 id(std::string_view piece) const override {
    const i32 id = processor_.PieceToId(absl::string_view(piece.data(), piece.size()));
    return processor_.IdToPiece(id) == piece ? id : -1;  // unknown pieces give the id of <unk>
  }
  std::string piece(i32 id) const override { return processor_.IdToPiece(id); }
  std::string_view bytes(i32 id) const override { return bytes_[static_cast<std::size_t>(id)]; }
  bool is_control(i32 id) const override { return processor_.IsControl(id); }
  bool drops_first_space() const override { return adds_prefix_space_; }
  std::vector<i32> prefix_tokens() const override { return {}; }
  void encode(std::string_view text, std::vector<i32>& ids) const override;
  std::vector<std::pair<std::string, std::string>> describe() const override { return {{"kind", "sentencepiece"}}; }

 private:
  void append_block(std::string_view text, std::vector<i32>& ids) const;
  void append_encoded(std::string_view text, std::vector<i32>& ids) const;
  void append_words(std::string_view text, std::vector<i32>& ids) const;
  void append_word(std::string_view word, WordCache& cache, std::vector<i32>& ids) const;
  bool pieces_end_at_spaces() const;

  std::string source_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> bytes_;  // what each id decodes to
  std::vector<i32> literal_space_;  // byte pieces of U+2581, empty without byte fallback
  bool adds_prefix_space_ = false;  // the model puts a space before every text
  bool can_split_ = false;          // no piece reaches from a word over the space after it
  bool remembers_words_ = false;    // as encodes_words_alone()
  mutable WorkspacePool<WordCache> known_words_;
  i32 eod_ = -1;
};

SentencepieceCoder::SentencepieceCoder(const std::string& content, const std::string& source) : source_(source) {
  check_charsmaps(content, source);
  check_input(load(processor_, content), "tokenizer model ", source,
              ": not a sentencepiece model, nor a tokenizer.json, vocab.json or list of ranks, or damaged");
  for (int i = 0; i < processor_.GetPieceSize(); ++i) {
    const std::string& piece = processor_.IdToPiece(i);
    if (processor_.IsByte(i)) {
      bytes_.emplace_back(1, byte_of_piece(piece));
    } else if (processor_.IsControl(i)) {
      bytes_.emplace_back();
    } else {
      bytes_.push_back(processor_.IsUnknown(i) ? " \xE2\x81\x87 " : with_spaces(piece));
    }
  }
  const i32 e2 = id("<0xE2>"), b96 = id("<0x96>"), b81 = id("<0x81>");
  if (e2 >= 0 && b96 >= 0 && b81 >= 0) literal_space_ = {e2, b96, b81};
  std::vector<i32> probe;
  append_block("x", probe);
  adds_prefix_space_ =
      !probe.empty() && bytes_[static_cast<std::size_t>(probe[0])].starts_with(' ') && !processor_.IsUnknown(probe[0]);
  can_split_ = pieces_end_at_spaces();
  remembers_words_ = can_split_ && encodes_words_alone(parse_sentencepiece_model(content, source));
  eod_ = id(kEodPiece);
  if (eod_ < 0) eod_ = processor_.eos_id();
}

void SentencepieceCoder::append_block(std::string_view text, std::vector<i32>& ids) const {
  std::vector<int> part;
  const auto status = processor_.Encode(absl::string_view(text.data(), text.size()), &part);
  check_input(status.ok(), "tokenizer model ", source_, ": damaged, it cannot encode: ", status.ToString());
  ids.insert(ids.end(), part.begin(), part.end());
}

/// Encodes in parts that end before a space that follows a word: no piece lies across, so the ids are those of the
/// whole. A model that puts a space before every text puts back the one that is left out between parts. These are
/// words, most of which come again, or else blocks, since sentencepiece's time per byte grows with the length of what
/// it is given.
void SentencepieceCoder::append_encoded(std::string_view text, std::vector<i32>& ids) const {
  if (remembers_words_) return append_words(text, ids);
  while (can_split_ && text.size() > kBlockBytes) {
    const std::size_t end = end_of_word(text, kBlockBytes);
    if (end == text.size()) break;
    append_block(text.substr(0, end), ids);
    text.remove_prefix(end + (adds_prefix_space_ ? 1 : 0));
  }
  append_block(text, ids);
}

void SentencepieceCoder::append_words(std::string_view text, std::vector<i32>& ids) const {
  std::unique_ptr<WordCache> cache = known_words_.take();
  while (!text.empty()) {
    const std::size_t end = end_of_word(text, std::min(text.find_first_not_of(' '), text.size()));
    append_word(text.substr(0, end), *cache, ids);
    text.remove_prefix(end < text.size() && adds_prefix_space_ ? end + 1 : end);
  }
  known_words_.give_back(std::move(cache));
}

void SentencepieceCoder::append_word(std::string_view word, WordCache& cache, std::vector<i32>& ids) const {
  if (word.size() > WordCache::kLongestWord) return append_block(word, ids);
  const u64 hash = WordCache::hash(word);
  if (const auto known = cache.find(word, hash)) {
    ids.insert(ids.end(), known->begin(), known->end());
    return;
  }
  const std::size_t before = ids.size();
  append_block(word, ids);
  cache.insert(word, hash, std::span(ids).subspan(before));
}

bool SentencepieceCoder::pieces_end_at_spaces() const {
  const auto crosses = [&](const std::string& piece) {
    const std::size_t word = piece.find_first_not_of(' ');
    return word != std::string::npos && piece.find(' ', word) != std::string::npos;
  };
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    if (!processor_.IsUnknown(static_cast<int>(i)) && crosses(bytes_[i])) return false;
  }
  // Some models merge or drop spaces; then blocks must not be glued with one.
  std::vector<i32> ids;
  append_block("x  y", ids);
  std::string text;
  for (const i32 id : ids) text += bytes_[static_cast<std::size_t>(id)];
  return text == (adds_prefix_space_ ? " x  y" : "x  y");
}

void SentencepieceCoder::encode(std::string_view text, std::vector<i32>& ids) const {
  // sentencepiece would turn a U+2581 of the text into a space: spelled in bytes, it comes back as what it was.
  if (!adds_prefix_space_ && !literal_space_.empty()) {
    for (std::size_t at = text.find(kSpaceMark); at != std::string_view::npos; at = text.find(kSpaceMark)) {
      append_encoded(text.substr(0, at), ids);
      ids.insert(ids.end(), literal_space_.begin(), literal_space_.end());
      text.remove_prefix(at + kSpaceMark.size());
    }
  }
  append_encoded(text, ids);
}

}  // namespace

std::unique_ptr<TextCoder> make_sentencepiece_coder(const std::string& content, const std::string& source) {
  return std::make_unique<SentencepieceCoder>(content, source);
}

}  // namespace mcpp
