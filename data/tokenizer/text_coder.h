// Interface of the coders, one per kind of tokenizer file. Tokenizer implements the common part.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

// Position of a text within its document.

/// Position of a part of a document. Additions of a model before or after a text, such as Llama 2's space, are made
/// only at the beginning and end of the document.
struct TextPart {
  bool begins = true, ends = true;  ///< the part is at the beginning or end of the document
  std::string_view before = {};     ///< preceding characters of the document, for models that merge spaces
};

/// Encoder and decoder of one kind. Const methods are thread-safe. Ids passed in must be below vocab_size().
class TextCoder {
 public:
  virtual ~TextCoder() = default;

  virtual i64 vocab_size() const = 0;
  virtual i32 eod() const = 0;                       ///< -1 = no token ends a document
  virtual i32 id(std::string_view piece) const = 0;  ///< -1 = no such piece
  virtual std::string piece(i32 id) const = 0;       ///< piece as written in the file
  virtual std::string_view bytes(i32 id) const = 0;  ///< decoded form; empty for control pieces
  virtual bool is_control(i32 id) const = 0;
  virtual bool drops_first_space() const = 0;  ///< true if decoding drops the first space of a text
  /// Returns the tokens that the file adds before a text for a model; encode() does not add them.
  virtual std::vector<i32> prefix_tokens() const = 0;
  /// Appends the ids of `text`, which must be UTF-8.
  virtual void encode(std::string_view text, const TextPart& part, std::vector<i32>& ids) const = 0;
  /// Returns a description as pairs of name and value.
  virtual std::vector<std::pair<std::string, std::string>> describe() const = 0;
};

}  // namespace mcpp
