// Writer of one rank's file of a checkpoint.
#pragma once
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "base/io/file_system.h"
#include "checkpoint/format/block_reader.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {

// Output file of a checkpoint.

/// Existing file that is overwritten without truncation. Aligned data (BlockMemory) are written with direct I/O if the
/// file system supports it: copies to the page cache would cost more CPU time than the rest of a save, and evict data
/// of concurrent readers.
class OutputFile {
 public:
  OutputFile(const Path& path, const FileSystem& files);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  i64 size() const;
  /// Reserves disk space for the entire file, so that later writes cannot run out of space.
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

/// Returns text like "1.00 MiB (1048576 bytes)".
std::string bytes_text(i64 bytes);

// Sequential file writer with a background thread.

/// Writes a file from its beginning. A thread writes block after block while the caller fills the next ones, so that
/// checksums overlap with writing.
class BlockWriter {
 public:
  /// Appends to `file` from its beginning.
  explicit BlockWriter(OutputFile& file);

  /// Appends a copy of these bytes. Errors of the thread are rethrown here or by a later call.
  void write(std::span<const std::byte> bytes);
  /// Blocks until all bytes are written.
  void finish();

 private:
  std::size_t& size_of(i64 number) { return sizes_[static_cast<std::size_t>(number % BlockMemory::kBlocks)]; }
  void submit_block();
  void wait_until_written(i64 number);
  void work(const std::stop_token& stop);

  OutputFile& file_;
  BlockMemory memory_;
  std::size_t in_block_ = 0;  // bytes in the block that is being filled

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<std::size_t, BlockMemory::kBlocks> sizes_{};
  i64 filled_ = 0, written_ = 0;  // blocks
  std::exception_ptr error_;
  std::jthread thread_;  // last: uses all members above
};

/// Writes all non-empty shards to a new HDF5 file, durably, with one shard in memory at a time. Shard k of a name
/// becomes the dataset "<name>/<k>" with its position in the global tensor as attributes. Returns a manifest with this
/// file; if there is nothing to write, creates no file and returns an empty manifest. Throws BadInput if the disk is
/// full, with the bytes needed and free, and for every failed write.
Manifest write_shard_file(const Path& path, ShardSource& source, const FileSystem& files);

}  // namespace mcpp
