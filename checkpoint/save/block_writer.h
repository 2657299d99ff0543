// Sequential file writer with a background thread.
#pragma once
#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "checkpoint/format/block_memory.h"
#include "checkpoint/save/output_file.h"

namespace mcpp {

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

}  // namespace mcpp
