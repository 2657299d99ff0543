#include "checkpoint/save/block_writer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace mcpp {

// In huge pages, of which the disk takes a block at once.
BlockWriter::BlockWriter(OutputFile& file)
    : file_(file), memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBlocks * kBlockBytes))) {
  if (!memory_) throw std::bad_alloc();
  ::madvise(memory_.get(), kBlocks * kBlockBytes, MADV_HUGEPAGE);
  thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
}

void BlockWriter::Free::operator()(std::byte* data) const {
  std::free(data);
}

void BlockWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (in_block_ == 0) wait_until_written(filled_ - static_cast<i64>(kBlocks));
    const std::size_t count = std::min(bytes.size(), kBlockBytes - in_block_);
    std::memcpy(block(filled_) + in_block_, bytes.data(), count);
    in_block_ += count;
    if (in_block_ == kBlockBytes) hand_over();
    bytes = bytes.subspan(count);
  }
}

void BlockWriter::finish() {
  if (in_block_ > 0) hand_over();
  wait_until_written(filled_ - 1);
}

void BlockWriter::hand_over() {
  const std::lock_guard lock(mutex_);
  sizes_[static_cast<std::size_t>(filled_) % kBlocks] = std::exchange(in_block_, 0);
  ++filled_;
  changed_.notify_all();
}

void BlockWriter::wait_until_written(i64 number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || written_ > number; });
  if (error_) std::rethrow_exception(error_);
}

/// Ends at the first error: there is no use in what comes after a gap.
void BlockWriter::work(const std::stop_token& stop) try {
  for (i64 offset = 0;;) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return written_ < filled_; })) return;
    const std::span<const std::byte> bytes(block(written_), size_of(written_));
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
