// A file read with plain reads, which take large files from the disk and the page cache faster than a mapping does.
#pragma once
#include <deque>
#include <functional>
#include <span>
#include <string>

#include "base/file.h"

namespace mcpp {

/// Hears of so many bytes more.
using BytesListener = std::function<void(i64 bytes)>;

class InputFile {
 public:
  explicit InputFile(const Path& path);  ///< BadInput when it cannot be opened or is no regular file
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  /// Fills `to` from byte `offset`; BadInput when the file ends before.
  void read(i64 offset, std::span<std::byte> to) const;
  /// Starts to bring these bytes, soon to be read, into memory.
  void prefetch(i64 offset, i64 bytes) const;
  i64 size() const;
  const Path& path() const { return path_; }
  /// XXH3-128 of the whole file, as 32 hexadecimal digits. `read` hears of each piece.
  std::string checksum(const BytesListener& read = {}) const;

 private:
  /// At most as many bytes as asked for; 0 at the end.
  i64 read_some(i64 offset, std::span<std::byte> to) const;

  Path path_;
  int descriptor_;
};

/// Keeps the disk busy with what will be read next, while the processor works on what was read: systems read ahead too
/// little by themselves, and not from one file or place to the next.
class ReadAhead {
 public:
  /// These bytes will be read, after all that was expected before. `file` outlives this.
  void expect(const InputFile& file, i64 offset, i64 bytes) { expected_.push_back({&file, offset, bytes}); }
  /// The next `bytes` of what is expected are about to be read.
  void before_reading(i64 bytes);

 private:
  struct Extent {
    const InputFile* file;
    i64 offset, bytes;
  };
  std::deque<Extent> expected_;  // and not asked for yet
  i64 ahead_ = 0;                // bytes asked for and not read yet
};

}  // namespace mcpp
