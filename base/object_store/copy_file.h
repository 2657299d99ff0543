// File that is written in parts by several threads and then appears under its name.
#pragma once
#include <span>

#include "base/file.h"

namespace mcpp {

/// New file of known size. Aligned parts are written with direct I/O, which avoids a copy to the page cache, if the
/// file system supports it. A process that dies leaves a temporary_name() next to `path`.
class CopyFile {
 public:
  /// Alignment of offsets, sizes and addresses of parts for direct I/O.
  static constexpr i64 kAlignment = 4096;

  /// Reserves the space; throws BadInput with the reason, such as a full disk.
  CopyFile(Path path, i64 bytes);
  ~CopyFile();
  CopyFile(const CopyFile&) = delete;
  CopyFile& operator=(const CopyFile&) = delete;

  /// Writes a part. Thread-safe for different parts.
  void write(i64 offset, std::span<const std::byte> bytes);
  /// Makes the file durable and gives it its name.
  void commit();

 private:
  void write_all(int descriptor, i64 offset, std::span<const std::byte> bytes) const;

  Path path_, temporary_;
  int descriptor_ = -1;
  int direct_ = -1;  ///< direct I/O; -1 if the file system does not support it
};

}  // namespace mcpp
