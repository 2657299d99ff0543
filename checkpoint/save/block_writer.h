// Bytes in the order of a file, written in blocks beside what makes them.
#pragma once
#include <array>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "checkpoint/save/output_file.h"

namespace mcpp {

/// Writes a file from its beginning. A thread writes block after block while the caller fills the next ones: so sums
/// are computed beside writing, and the disk does not wait for them.
class BlockWriter {
 public:
  /// `file` outlives this.
  explicit BlockWriter(OutputFile& file);

  /// Goes on with these bytes, which are copied. Throws what the thread failed of, now or at one of the next calls.
  void write(std::span<const std::byte> bytes);
  /// Returns when all are written.
  void finish();

 private:
  // Blocks that are large enough for the disk, and few enough to stay in the processor's cache until they are written.
  static constexpr std::size_t kBlocks = 3, kBlockBytes = std::size_t{4} << 20;

  struct Free {
    void operator()(std::byte* data) const;
  };

  std::byte* block(i64 number) const {
    return memory_.get() + static_cast<std::size_t>(number) % kBlocks * kBlockBytes;
  }
  std::size_t size_of(i64 number) const { return sizes_[static_cast<std::size_t>(number) % kBlocks]; }
  void hand_over();
  void wait_until_written(i64 number);
  void work(const std::stop_token& stop);

  OutputFile& file_;
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t in_block_ = 0;  // bytes in the block that is being filled

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::array<std::size_t, kBlocks> sizes_{};
  i64 filled_ = 0, written_ = 0;  // blocks
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace mcpp
