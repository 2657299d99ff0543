// Read-ahead of file blocks, concurrent with their consumer.
#pragma once
#include <array>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/types.h"
#include "checkpoint/format/input_file.h"

namespace mcpp {

// Buffers between a disk and the producer or consumer of its bytes.

/// Ring of blocks in huge pages, each the unit of one disk read or write: large enough for the disk, and few enough to
/// stay in the CPU's cache.
class BlockMemory {
 public:
  static constexpr i64 kBlocks = 3, kBlockBytes = i64{4} << 20;
  /// Alignment of offsets, sizes and addresses for direct I/O; blocks are aligned.
  static constexpr i64 kAlignment = 4096;

  BlockMemory();
  /// Returns block `number` modulo kBlocks.
  std::span<std::byte> block(i64 number) const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

/// Method of reading bytes from a disk.
enum class ReadMode : u8 {
  PageCache,  ///< buffered reads, for data that other processes also read or that this one reads again
  Direct  ///< direct I/O where the disk supports it (open_direct): copies and page allocation take more CPU time than
          ///< everything else
};

/// Thread that reads the expected extents block by block while the caller processes earlier ones, so that disk and
/// checksums overlap. All extents must be declared before the first byte is requested, and are requested in the same
/// order.
class BlockReader {
 public:
  /// Recommended number of bytes per request: stays in the CPU's cache between the read, the checksum and the copy.
  static constexpr i64 kPieceBytes = i64{1} << 19;

  BlockReader() = default;

  /// Declares bytes [offset, offset + bytes), which follow everything declared before.
  void declare(const InputFile& file, i64 offset, i64 bytes, ReadMode mode);
  /// Returns at most `max_bytes` bytes from `offset` on, a multiple of `unit` and at least one unit: those in one
  /// block, valid until the next call. `unit` must divide BlockMemory::kAlignment and `offset`, so that a unit is in
  /// one block. Rethrows errors of the thread; throws BadInput if the file is too short.
  std::span<const std::byte> at(const InputFile& file, i64 offset, i64 max_bytes, i64 unit = 1);

 private:
  /// Bytes [begin, end) of a file.
  struct Extent {
    const InputFile* file;
    i64 begin, end;
    ReadMode mode;
    bool has(const InputFile& of, i64 first, i64 bytes) const {
      return file == &of && begin <= first && first + bytes <= end;
    }
  };
  class Source;

  Extent& in_block(i64 number) { return in_blocks_[static_cast<std::size_t>(number % BlockMemory::kBlocks)]; }
  bool wait_for_free_block(const std::stop_token& stop);
  void read(Source& source, const Extent& extent, const std::stop_token& stop);
  void work(const std::stop_token& stop);

  std::vector<Extent> expected_;
  BlockMemory memory_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Extent, BlockMemory::kBlocks> in_blocks_{};
  i64 filled_ = 0, used_ = 0;  // blocks
  bool is_finished_ = false;   // the thread has stopped reading
  std::exception_ptr error_;   // reason why it stopped
  std::jthread thread_;        // last: uses all members above
};

/// Returns the XXH3-128 of an entire file, as 32 hexadecimal digits. `read` is called for each piece.
std::string file_checksum(const InputFile& file, const BytesListener& read = {});

}  // namespace mcpp
