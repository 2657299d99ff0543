// Bytes of files, read in blocks beside what uses them.
#pragma once
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "checkpoint/format/block_memory.h"
#include "checkpoint/format/input_file.h"

namespace mcpp {

/// Which way bytes come from a disk.
enum class ReadWay : u8 {
  PageCache,  ///< for what others read as well, or this process again
  Direct      ///< past it, where a disk has it (open_direct): copies and pages for them cost more processor
              ///< time than all else
};

/// A thread reads block after block of what is expected, while the caller works on those before: so the disk does not
/// wait for sums, nor they for it. All is expected before the first byte is asked for, and asked for in the same order.
class BlockReader {
 public:
  /// What to take at a time: it stays in the processor's cache between the read, the checksum and the copy.
  static constexpr i64 kPieceBytes = i64{1} << 19;

  BlockReader() = default;

  /// Bytes [offset, offset + bytes), which come after all that was expected before, will be asked for. `file` outlives
  /// this.
  void expect(const InputFile& file, i64 offset, i64 bytes, ReadWay way);
  /// At most `most` of them from `offset` on, a multiple of `unit`, at least one: what lies in one block, until the
  /// next call. BlockMemory::kAlignment and `offset` are multiples of it too, so that a unit lies in one block. Throws
  /// what the thread failed of, BadInput when the file ends before.
  std::span<const std::byte> at(const InputFile& file, i64 offset, i64 most, i64 unit = 1);

 private:
  /// Bytes [begin, end) of a file.
  struct Extent {
    const InputFile* file;
    i64 begin, end;
    ReadWay way;
    bool has(const InputFile& of, i64 first, i64 bytes) const {
      return file == &of && begin <= first && first + bytes <= end;
    }
  };
  class Source;

  Extent& in_block(i64 number) { return in_blocks_[static_cast<std::size_t>(number % BlockMemory::kBlocks)]; }
  bool wait_for_room(const std::stop_token& stop);
  void read(Source& source, const Extent& extent, const std::stop_token& stop);
  void work(const std::stop_token& stop);

  std::vector<Extent> expected_;
  BlockMemory memory_;

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<Extent, BlockMemory::kBlocks> in_blocks_{};
  i64 filled_ = 0, used_ = 0;  // blocks
  bool is_over_ = false;       // the thread reads nothing more
  std::exception_ptr error_;   // why
  std::jthread thread_;        // last: it uses all of the above
};

/// XXH3-128 of a whole file, as 32 hexadecimal digits. `read` hears of each piece.
std::string file_checksum(const InputFile& file, const BytesListener& read = {});

}  // namespace mcpp
