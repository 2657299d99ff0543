#include "checkpoint/save/block_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mcpp {

BlockWriter::BlockWriter(OutputFile& file)
    : file_(file), thread_([this](const std::stop_token& stop) { work(stop); }) {}

void BlockWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (in_block_ == 0) wait_until_written(filled_ - BlockMemory::kBlocks);
    const std::span<std::byte> room = memory_.block(filled_).subspan(in_block_);
    const std::size_t count = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), count);
    in_block_ += count;
    if (count == room.size()) submit_block();
    bytes = bytes.subspan(count);
  }
}

void BlockWriter::finish() {
  if (in_block_ > 0) submit_block();
  wait_until_written(filled_ - 1);
}

void BlockWriter::submit_block() {
  const std::lock_guard lock(mutex_);
  size_of(filled_) = std::exchange(in_block_, 0);
  ++filled_;
  changed_.notify_all();
}

void BlockWriter::wait_until_written(i64 number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || written_ > number; });
  if (error_) std::rethrow_exception(error_);
}

/// Stops at the first error: data after a gap are useless.
void BlockWriter::work(const std::stop_token& stop) try {
  for (i64 offset = 0;;) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return written_ < filled_; })) return;
    const std::span<const std::byte> bytes = memory_.block(written_).first(size_of(written_));
    lock.unlock();
    file_.write(offset, bytes);
    offset += static_cast<i64>(bytes.size());
    lock.lock();
    ++written_;
    changed_.notify_all();
  }
} catch (...) {
  const std::lock_guard lock(mutex_);
  error_ = std::current_exception();
  changed_.notify_all();
}

}  // namespace mcpp
