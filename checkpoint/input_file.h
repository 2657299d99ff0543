// A file read with plain reads, which take large files from the disk and the page cache faster than a mapping does.
#pragma once
#include <span>
#include <string>

#include "base/file.h"

namespace mcpp {

class InputFile {
 public:
  explicit InputFile(const Path& path);  ///< BadInput when it cannot be opened or is no regular file
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  /// Fills `to` from byte `offset`; BadInput when the file ends before.
  void read(i64 offset, std::span<std::byte> to) const;
  /// XXH3-128 of the whole file, as 32 hexadecimal digits.
  std::string checksum() const;

 private:
  /// At most as many bytes as asked for; 0 at the end.
  i64 read_some(i64 offset, std::span<std::byte> to) const;

  Path path_;
  int descriptor_;
};

}  // namespace mcpp
