// Text to token ids and back, with a sentencepiece model or with what the Hugging Face Hub and tiktoken have.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/stored_ref.h"
#include "data/tokenizer/text_part.h"

namespace mcpp {

inline constexpr std::string_view kEodPiece = "<eod>";

/// All const methods may be called by several threads at once. Move-only.
class Tokenizer {
 public:
  /// Any sentencepiece model, ours or, for example, Llama 2's tokenizer.model; a tokenizer.json of byte pair encoding;
  /// a vocab.json with merges.txt beside it; a list of ranks, such as cl100k_base.tiktoken or Llama 3's
  /// tokenizer.model. Which it is, its content says. BadInput when the file is missing, damaged or asks for what is not
  /// there, or when it has nothing to end a document with (a piece <eod>, the end-of-sentence piece, or one such as
  /// <|endoftext|>).
  explicit Tokenizer(const Path& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  i64 vocab_size() const;
  i32 eod() const;                       ///< ends every document
  i32 id(std::string_view piece) const;  ///< -1 when there is no such piece
  std::string piece(i32 id) const;       ///< as the file spells it: U+2581 for a space, <0x0A> for a byte
  /// XXH3-128 of read_tokenizer_file(): equal for equal tokenizers.
  const std::string& checksum() const;
  const Path& path() const;
  /// What the file puts before texts for its model, such as Llama 3's <|begin_of_text|>; encode() does not.
  std::vector<i32> prefix_tokens() const;
  /// What it is, in words: names and values.
  std::vector<std::pair<std::string, std::string>> describe() const;

  /// BadInput, with byte offset and line, unless the text is UTF-8. Of a sentencepiece model no control piece comes out
  /// of text: "<eod>" is ordinary text. In other files special tokens are found in the text, as `tokenizers` does.
  /// `part`: which part of a document `text` is.
  std::vector<i32> encode(std::string_view text, const TextPart& part = {}) const;

  /// With a model of train_tokenizer() with byte_fallback, decode(encode(text)) == text for every text. Control pieces
  /// such as <eod> give nothing. BadInput for ids outside the vocabulary.
  std::string decode(std::span<const i32> ids) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  void check_id(i32 id) const;

  std::unique_ptr<Impl> impl_;
};

/// Decodes ids as they are generated. Bytes of a character that is not whole yet are held back, so that all that is
/// returned is printable.
class StreamDecoder {
 public:
  explicit StreamDecoder(StoredRef<Tokenizer> tokenizer) : tokenizer_(tokenizer) {}
  std::string add(i32 id);
  std::string finish();  ///< what was held back, with U+FFFD for broken characters

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool is_first_ = true;
};

}  // namespace mcpp
