// A file read with plain reads, which take large files from the disk and the page cache faster than a mapping does.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "base/file.h"

namespace mcpp {

/// Fills `to` from byte `offset` of a file that is open as `descriptor`; BadInput, with `path`, when it ends before.
void read_at(int descriptor, const Path& path, i64 offset, std::span<std::byte> to);

/// Hears of so many bytes more.
using BytesListener = std::function<void(i64 bytes)>;

class InputFile {
 public:
  explicit InputFile(const Path& path);  ///< BadInput when it cannot be opened or is no regular file
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  /// Fills `to` from byte `offset`; BadInput when the file ends before.
  void read(i64 offset, std::span<std::byte> to) const { read_at(descriptor_, path_, offset, to); }
  /// Starts to bring these bytes, soon to be read, into memory.
  void prefetch(i64 offset, i64 bytes) const;
  i64 size() const;
  const Path& path() const { return path_; }

 private:
  Path path_;
  int descriptor_;
};

}  // namespace mcpp
