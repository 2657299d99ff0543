// A file of a checkpoint on its way to the disk.
#pragma once
#include <span>

#include "checkpoint/folder/file_system.h"

namespace mcpp {

/// An existing file that is rewritten in place. What is aligned (BlockMemory), in the file and in memory, goes to the
/// disk past the system's page cache where the file system can: to copy it there, and the pages for that, would cost
/// more processor time than all else of a save, and take memory from what reads files beside it.
class OutputFile {
 public:
  OutputFile(const Path& path, const FileSystem& files);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  i64 size() const;
  /// Takes room on the disk for all of it, so that the disk cannot turn out to be full later.
  void reserve(i64 bytes);
  /// One thread at a time writes; others may read elsewhere in the file meanwhile.
  void write(i64 offset, std::span<const std::byte> bytes);
  /// As InputFile::read().
  void read(i64 offset, std::span<std::byte> to) const;
  /// Returns when all is on the disk.
  void flush();

 private:
  /// What one call is to write of `bytes`: their aligned beginning, or a piece through the page cache.
  struct Piece {
    std::span<const std::byte> bytes;
    bool is_direct;
  };
  Piece next_piece(i64 offset, std::span<const std::byte> bytes) const;

  Path path_;
  const FileSystem& files_;
  int descriptor_;
  int direct_;  // past the page cache; -1 where the file system cannot
};

/// Free bytes for this user in the file system of `path`.
i64 free_bytes(const Path& path);
/// "1.00 MiB (1048576 bytes)", for messages.
std::string bytes_text(i64 bytes);

}  // namespace mcpp
