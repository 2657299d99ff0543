// What each kind of tokenizer file must offer to Tokenizer, which adds what is the same for all.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "data/tokenizer/text_part.h"

namespace mcpp {

/// All const methods may be called by several threads at once. Ids that are handed in are below vocab_size().
class TextCoder {
 public:
  virtual ~TextCoder() = default;

  virtual i64 vocab_size() const = 0;
  virtual i32 eod() const = 0;                       ///< -1 when nothing ends a document
  virtual i32 id(std::string_view piece) const = 0;  ///< -1 when there is no such piece
  virtual std::string piece(i32 id) const = 0;       ///< as the file spells it
  virtual std::string_view bytes(i32 id) const = 0;  ///< what it decodes to; nothing for control pieces
  virtual bool is_control(i32 id) const = 0;
  virtual bool drops_first_space() const = 0;  ///< of a text that is decoded
  /// What the file puts before a text that a model reads; encode() does not.
  virtual std::vector<i32> prefix_tokens() const = 0;
  /// Appends the ids of `text`, which is UTF-8.
  virtual void encode(std::string_view text, const TextPart& part, std::vector<i32>& ids) const = 0;
  /// What it is, in words: names and values.
  virtual std::vector<std::pair<std::string, std::string>> describe() const = 0;
};

}  // namespace mcpp
