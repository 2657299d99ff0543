// Input file with plain reads, which are faster for large files than a memory mapping.
#pragma once
#include <functional>
#include <span>
#include <string>

#include "base/file.h"

namespace mcpp {

/// Fills `to` from byte `offset` of an open file; throws BadInput with `path` if the file is too short.
void read_at(int descriptor, const Path& path, i64 offset, std::span<std::byte> to);

/// Called with the number of bytes read since the last call.
using BytesListener = std::function<void(i64 bytes)>;

class InputFile {
 public:
  explicit InputFile(const Path& path);  ///< throws BadInput if it cannot be opened or is not a regular file
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  /// Fills `to` from byte `offset`; throws BadInput if the file is too short.
  void read(i64 offset, std::span<std::byte> to) const { read_at(descriptor_, path_, offset, to); }
  /// Starts reading these bytes into the page cache.
  void prefetch(i64 offset, i64 bytes) const;
  i64 size() const;
  const Path& path() const { return path_; }

 private:
  Path path_;
  int descriptor_;
};

}  // namespace mcpp
