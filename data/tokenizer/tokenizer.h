// Conversion of text to token ids and back, with sentencepiece models and the tokenizer files of the Hugging Face Hub
// and tiktoken.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/stored_ref.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

inline constexpr std::string_view kEodPiece = "<eod>";

/// Tokenizer. Const methods are thread-safe. Move-only.
class Tokenizer {
 public:
  /// Reads a tokenizer file, whose kind is determined by its content:
  /// - a sentencepiece model, for example Llama 2's tokenizer.model;
  /// - a tokenizer.json of byte pair encoding;
  /// - a vocab.json with merges.txt next to it;
  /// - a rank list of tiktoken, such as cl100k_base.tiktoken or Llama 3's tokenizer.model.
  ///
  /// Throws BadInput if the file is missing, damaged or unsupported, or has no token to end a document with (a piece
  /// <eod>, the end-of-sentence piece, or a special token such as <|endoftext|>).
  explicit Tokenizer(const Path& file);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  i64 vocab_size() const;
  i32 eod() const;                       ///< ends every document
  i32 id(std::string_view piece) const;  ///< -1 = no such piece
  std::string piece(i32 id) const;       ///< piece as written in the file: U+2581 for a space, <0x0A> for a byte
  /// Returns the XXH3-128 hash of read_tokenizer_file(): equal for equal tokenizers.
  const std::string& checksum() const;
  const Path& path() const;
  /// Returns the tokens that the file adds before texts for its model, such as Llama 3's <|begin_of_text|>; encode()
  /// does not add them.
  std::vector<i32> prefix_tokens() const;
  /// Returns a description as pairs of name and value.
  std::vector<std::pair<std::string, std::string>> describe() const;

  /// Encodes a text. Throws BadInput, with byte offset and line, unless it is UTF-8. With a sentencepiece model, text
  /// never becomes a control piece: "<eod>" is ordinary text. With other tokenizers, special tokens are recognized in
  /// the text, as in `tokenizers`. `part` is the position of `text` in a document.
  std::vector<i32> encode(std::string_view text, const TextPart& part = {}) const;

  /// Decodes ids. With a model of train_tokenizer() with byte_fallback, decode(encode(text)) == text for every text.
  /// Control pieces such as <eod> decode to nothing. Throws BadInput for ids outside of the vocabulary.
  std::string decode(std::span<const i32> ids) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  void check_id(i32 id) const;

  std::unique_ptr<Impl> impl_;
};

/// Decodes ids as they are generated. Bytes of an incomplete character are held back, so that all returned text is
/// printable.
class StreamDecoder {
 public:
  explicit StreamDecoder(StoredRef<Tokenizer> tokenizer) : tokenizer_(tokenizer) {}
  std::string add(i32 id);
  std::string finish();  ///< returns the bytes that were held back, with U+FFFD for incomplete characters

 private:
  const Tokenizer& tokenizer_;
  std::string incomplete_;
  bool is_first_ = true;
};

}  // namespace mcpp
