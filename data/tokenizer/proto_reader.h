// A protocol buffer's fields, one after another, for files that are too odd or too hostile to be left to a library.
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// One field of a message, whatever its number means. Only one of the two values is set.
struct ProtoField {
  u64 number = 0;
  u64 integer = 0;         ///< of a varint
  std::string_view bytes;  ///< of a string, a message, or a number of fixed size (4 or 8 bytes)
};

class ProtoReader {
 public:
  /// `bytes` must outlive what is read. `source` is how messages call the file.
  ProtoReader(std::string_view bytes, const std::string& source) : rest_(bytes), source_(source) {}

  /// The next field; false at the end. Throws BadInput when the bytes are no message.
  bool next(ProtoField& field);

  /// Returns what has not been read yet.
  std::string_view rest() const { return rest_; }

 private:
  [[noreturn]] void damaged() const;
  std::string_view take(u64 size);
  u64 varint();

  std::string_view rest_;
  const std::string& source_;
};

}  // namespace mcpp
