// Input and output of checkpoint files in blocks, concurrent with the producer or consumer of their bytes.
#pragma once
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/io/file_system.h"
#include "base/io/scratch_file.h"
#include "base/thread_pool.h"

namespace mcpp {

/// Fills `to` from byte `offset` of an open file; throws BadInput with `path` if the file is too short.
void read_at(int descriptor, const Path& path, i64 offset, std::span<std::byte> to);

/// Callback for progress, called with the number of bytes read since the last call.
using BytesListener = std::function<void(i64 bytes)>;

/// Input file with plain reads, which are faster for large files than a memory mapping.
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
  /// Reads like InputFile::read().
  void read(i64 offset, std::span<std::byte> to) const { read_at(descriptor_, path_, offset, to); }
  /// Blocks until all data are on disk.
  void flush();

 private:
  /// Data of the next write call: the aligned beginning of `bytes`, or a chunk to be written through the page cache.
  struct Chunk {
    std::span<const std::byte> bytes;
    bool is_direct;
  };
  Chunk next_chunk(i64 offset, std::span<const std::byte> bytes) const;

  Path path_;
  const FileSystem& files_;
  int descriptor_;
  int direct_;  // direct I/O; -1 if the file system does not support it
};

/// Returns text like "1.00 MiB (1048576 bytes)".
std::string bytes_text(i64 bytes);

// Buffers between a disk and the producer or consumer of its bytes.

/// Ring of blocks in huge pages, each the unit of one disk read or write: large enough for the disk, and few enough to
/// stay in the CPU's cache.
class BlockMemory {
 public:
  static constexpr i64 kBlocks = 3, kBlockBytes = i64{4} << 20;
  /// Alignment of offsets, sizes and addresses for direct I/O; blocks are aligned.
  static constexpr i64 kAlignment = ScratchFile::kAlignment;

  BlockMemory();
  /// Returns block `number` modulo kBlocks.
  std::span<std::byte> block(i64 number) const;

 private:
  AlignedBytes memory_{kBlocks * kBlockBytes, kBlockBytes};
};

/// Method of reading bytes from a disk.
enum class ReadMode : u8 {
  PageCache,  ///< buffered reads, for data that other processes also read or that this one reads again
  Direct  ///< direct I/O where the disk supports it (open_direct): copies and page allocation take more CPU time than
          ///< everything else
};

/// Reads the expected extents block by block in a thread while the caller processes earlier ones, so that disk and
/// checksums overlap. All extents must be declared before the first byte is requested, and must be requested in the
/// order of declaration.
class BlockReader {
 public:
  /// Recommended number of bytes per request: stays in the CPU's cache between the read, the checksum and the copy.
  static constexpr i64 kChunkBytes = i64{1} << 19;

  BlockReader();
  ~BlockReader();

  /// Declares bytes [offset, offset + bytes), which follow everything declared before.
  void declare(const InputFile& file, i64 offset, i64 bytes, ReadMode mode);
  /// Returns at most `max_bytes` bytes from `offset` on, all in one block and valid until the next call. Their number
  /// is a multiple of `unit` and at least `unit`, which must divide BlockMemory::kAlignment and `offset`, so that a
  /// unit never spans two blocks. Rethrows errors of the thread; throws BadInput if the file is too short.
  std::span<const std::byte> at(const InputFile& file, i64 offset, i64 max_bytes, i64 unit = 1);

 private:
  /// Bytes [begin, end) of a file.
  struct Extent {
    const InputFile* file;
    i64 begin, end;
    ReadMode mode;
    bool has(const InputFile& input, i64 first, i64 bytes) const {
      return file == &input && begin <= first && first + bytes <= end;
    }
  };
  class Source;

  void start();
  void start_next_read();

  std::vector<Extent> expected_;
  std::vector<Extent> blocks_;  // the extents of expected_, divided into blocks
  BlockMemory memory_;
  std::size_t used_ = 0;                        // number of leading blocks that are no longer needed
  std::deque<std::shared_future<void>> reads_;  // reads of the blocks after the used ones
  std::unique_ptr<Source> source_;              // used by the thread
  std::optional<ThreadPool> thread_;            // last member: uses all of the above
};

/// Returns the XXH3-128 of an entire file, as 32 hexadecimal digits. `read` is called for each chunk.
std::string file_checksum(const InputFile& file, const BytesListener& read = {});

/// Writes a file from its beginning. A thread writes block after block while the caller fills the next ones, so that
/// checksums overlap with writing.
class BlockWriter {
 public:
  explicit BlockWriter(OutputFile& file) : file_(file) {}

  /// Appends a copy of these bytes. Errors of the thread are rethrown here or by a later call.
  void write(std::span<const std::byte> bytes);
  /// Blocks until all bytes are written.
  void finish();

 private:
  void start_write();
  /// Blocks until at most `count` blocks are being written.
  void wait_until_in_flight(std::size_t count);

  OutputFile& file_;
  BlockMemory memory_;
  i64 filled_ = 0;                               // number of blocks filled so far
  i64 offset_ = 0;                               // file offset of the block being filled
  std::size_t in_block_ = 0;                     // bytes in the block being filled
  std::deque<std::shared_future<void>> writes_;  // writes in flight
  ThreadPool thread_{1};                         // last member: uses all of the above
};

}  // namespace mcpp
