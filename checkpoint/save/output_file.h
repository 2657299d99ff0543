// Output file of a checkpoint.
#pragma once
#include <span>

#include "base/io/file_system.h"

namespace mcpp {

/// Existing file that is rewritten in place. Aligned data (BlockMemory) are written with direct I/O if the file system
/// supports it: copies to the page cache would cost more CPU time than the rest of a save, and evict data of concurrent
/// readers.
class OutputFile {
 public:
  OutputFile(const Path& path, const FileSystem& files);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  i64 size() const;
  /// Reserves disk space for the whole file, so that later writes cannot run out of space.
  void reserve(i64 bytes);
  /// Writes bytes. Only one thread may write at a time; others may read other parts of the file concurrently.
  void write(i64 offset, std::span<const std::byte> bytes);
  /// See InputFile::read().
  void read(i64 offset, std::span<std::byte> to) const;
  /// Blocks until all data are on disk.
  void flush();

 private:
  /// Data of the next write call: the aligned beginning of `bytes`, or a piece that is written through the page cache.
  struct Piece {
    std::span<const std::byte> bytes;
    bool is_direct;
  };
  Piece next_piece(i64 offset, std::span<const std::byte> bytes) const;

  Path path_;
  const FileSystem& files_;
  int descriptor_;
  int direct_;  // direct I/O; -1 if the file system does not support it
};

/// Returns the free bytes for this user in the file system of `path`.
i64 free_bytes(const Path& path);
/// Returns text like "1.00 MiB (1048576 bytes)".
std::string bytes_text(i64 bytes);

}  // namespace mcpp
