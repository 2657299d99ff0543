// Reader of protocol buffer fields, for files that a library rejects or does not parse safely.
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Field of a message. Only one of the two values is set.
struct ProtoField {
  u64 number = 0;
  u64 integer = 0;         ///< value of a varint
  std::string_view bytes;  ///< value of a string, a message, or a type of fixed size (4 or 8 bytes)
};

class ProtoReader {
 public:
  /// The fields refer to `bytes`. `source` is the name of the file in messages.
  ProtoReader(std::string_view bytes, const std::string& source) : remaining_(bytes), source_(source) {}

  /// Reads the next field. Returns false at the end. Throws BadInput if the bytes are not a valid message.
  bool next(ProtoField& field);

  /// Returns the bytes that were not read yet.
  std::string_view rest() const { return remaining_; }

 private:
  [[noreturn]] void fail_damaged() const;
  std::string_view take(u64 size);
  u64 varint();

  std::string_view remaining_;
  const std::string& source_;
};

}  // namespace mcpp
