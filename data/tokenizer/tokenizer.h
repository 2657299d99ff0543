// Text to token ids and back, with a sentencepiece model.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/kept_ref.h"

namespace mcpp {

inline constexpr std::string_view kEodPiece = "<eod>";

/// All const methods may be called by several threads at once. Move-only.
class Tokenizer {
 public:
  /// Any sentencepiece model, ours or, for example, Llama's tokenizer.model. BadInput when the file is missing or no
  /// such model, or when it has nothing to end a document with (a piece <eod>, else the end-of-sentence piece).
  explicit Tokenizer(const Path& model);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  i64 vocab_size() const;
  i32 eod() const;                       ///< ends every document
  i32 id(std::string_view piece) const;  ///< -1 when there is no such piece
  std::string piece(i32 id) const;       ///< as the model spells it: U+2581 for a space, <0x0A> for a byte
  /// XXH3-128 of the model file: equal for equal tokenizers.
  const std::string& checksum() const;
  const Path& path() const;

  /// BadInput, with byte offset and line, unless the text is UTF-8. The text "<eod>" is ordinary text.
  std::vector<i32> encode(std::string_view text) const;

  /// With a model of train_tokenizer() with byte_fallback, decode(encode(text)) == text for every text. Control pieces
  /// such as <eod> give nothing. BadInput for ids outside the vocabulary.
  std::string decode(std::span<const i32> ids) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  /// The bytes of one piece; the first of a text loses the space that some models put before it.
  std::string_view bytes_of(i32 id, bool is_first) const;

  std::unique_ptr<Impl> impl_;
};

/// Decodes ids as they are generated. Bytes of a character that is not whole yet are held back, so that all that is
/// returned is printable.
class StreamDecoder {
 public:
  explicit StreamDecoder(KeptRef<Tokenizer> tokenizer) : tokenizer_(tokenizer) {}
  std::string add(i32 id);
  std::string finish();  ///< what was held back, with U+FFFD for broken characters

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
  bool is_first_ = true;
};

}  // namespace mcpp
