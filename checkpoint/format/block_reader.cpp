#include "checkpoint/format/block_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/integer_math.h"

namespace mcpp {

BlockMemory::BlockMemory() : memory_(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, kBlocks * kBlockBytes))) {
  if (!memory_) throw std::bad_alloc();
  ::madvise(memory_.get(), kBlocks * kBlockBytes, MADV_HUGEPAGE);
}

std::span<std::byte> BlockMemory::block(i64 number) const {
  return {memory_.get() + number % kBlocks * kBlockBytes, static_cast<std::size_t>(kBlockBytes)};
}

void BlockMemory::Free::operator()(std::byte* data) const {
  std::free(data);
}

/// Reads extents from disk, one by one.
class BlockReader::Source {
 public:
  explicit Source(std::span<const Extent> extents) : extents_(extents) {}
  ~Source() { close(); }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// Reads `count` bytes from an aligned offset of the extent's file to the beginning of a block. May overwrite the
  /// rest of the block.
  void read(const Extent& extent, i64 offset, std::span<std::byte> block, i64 count) {
    const i64 done = open(extent) ? read_direct(offset, block, count) : 0;
    if (done >= count) return;
    prefetch();
    const std::span<std::byte> rest =
        block.first(static_cast<std::size_t>(count)).subspan(static_cast<std::size_t>(done));
    extent.file->read(offset + done, rest);
    prefetched_ -= count - done;
  }

 private:
  bool is_direct(const Extent& extent) const { return extent.mode == ReadMode::Direct && !is_direct_unsupported_; }

  bool open(const Extent& extent) {
    if (is_direct(extent) && file_ != extent.file) {
      close();
      file_ = extent.file;
      direct_ = open_direct(file_->path(), O_RDONLY | O_NONBLOCK);
      is_direct_unsupported_ = direct_ < 0;
    }
    return is_direct(extent);
  }

  void close() {
    if (direct_ >= 0) ::close(std::exchange(direct_, -1));
  }

  /// Returns less than `count` at the end of the file, and if direct I/O fails; the buffered read then reports the
  /// error.
  i64 read_direct(i64 offset, std::span<std::byte> block, i64 count) const {
    i64 done = 0;
    while (done < count) {
      const auto bytes = static_cast<std::size_t>(round_up(count - done, BlockMemory::kAlignment));
      const ssize_t read_now = ::pread(direct_, block.data() + done, bytes, offset + done);
      if (read_now < 0 && errno == EINTR) continue;
      done += std::max<i64>(read_now, 0);
      if (read_now <= 0 || read_now % BlockMemory::kAlignment != 0) break;
    }
    return done;
  }

  /// Prefetches the next extents into the page cache: the kernel reads too little ahead, and not across extents. In
  /// steps, because some systems only honor the beginning of a larger request.
  void prefetch() {
    constexpr i64 kAhead = i64{32} << 20, kStep = i64{1} << 20;
    while (prefetched_ < kAhead && next_ < extents_.size()) {
      const Extent& extent = extents_[next_];
      const i64 begin = extent.begin + prefetched_of_next_, count = std::min(kStep, extent.end - begin);
      if (is_direct(extent) || count <= 0) {
        ++next_, prefetched_of_next_ = 0;
        continue;
      }
      extent.file->prefetch(begin, count);
      prefetched_of_next_ += count, prefetched_ += count;
    }
  }

  std::span<const Extent> extents_;
  std::size_t next_ = 0;        // extent to prefetch
  i64 prefetched_of_next_ = 0;  // bytes of it already prefetched
  i64 prefetched_ = 0;          // bytes prefetched and not yet read
  const InputFile* file_ = nullptr;
  int direct_ = -1;                     // direct I/O descriptor of file_
  bool is_direct_unsupported_ = false;  // direct I/O is not supported
};

void BlockReader::declare(const InputFile& file, i64 offset, i64 bytes, ReadMode mode) {
  constexpr i64 kGap = i64{1} << 16;  // reading a smaller gap is cheaper than a separate read
  Extent* last = expected_.empty() ? nullptr : &expected_.back();
  const bool is_contiguous =
      last && last->file == &file && last->mode == mode && last->end <= offset && offset <= last->end + kGap;
  if (is_contiguous)
    last->end = offset + bytes;
  else
    expected_.push_back({&file, offset / BlockMemory::kAlignment * BlockMemory::kAlignment, offset + bytes, mode});
}

std::span<const std::byte> BlockReader::at(const InputFile& file, i64 offset, i64 max_bytes, i64 unit) {
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  std::unique_lock lock(mutex_);
  for (;; ++used_, changed_.notify_all()) {
    changed_.wait(lock, [&] { return used_ < filled_ || is_finished_; });
    if (used_ == filled_ && error_) std::rethrow_exception(error_);
    MCPP_CHECK(used_ < filled_, file.path().string(), ": byte ", offset, " was not expected");
    const Extent& block = in_block(used_);
    if (!block.has(file, offset, unit)) continue;
    const i64 count = std::min(max_bytes, block.end - offset) / unit * unit;
    return memory_.block(used_).subspan(static_cast<std::size_t>(offset - block.begin),
                                        static_cast<std::size_t>(count));
  }
}

/// Returns false if the data will not be used.
bool BlockReader::wait_for_free_block(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, stop, [&] { return filled_ - used_ < BlockMemory::kBlocks; });
  return !stop.stop_requested();
}

void BlockReader::read(Source& source, const Extent& extent, const std::stop_token& stop) {
  for (i64 begin = extent.begin; begin < extent.end && wait_for_free_block(stop); begin += BlockMemory::kBlockBytes) {
    const i64 end = std::min(extent.end, begin + BlockMemory::kBlockBytes);
    source.read(extent, begin, memory_.block(filled_), end - begin);
    const std::lock_guard lock(mutex_);
    in_block(filled_) = {extent.file, begin, end, extent.mode};
    ++filled_;
    changed_.notify_all();
  }
}

void BlockReader::work(const std::stop_token& stop) {
  std::exception_ptr error;
  try {
    Source source(expected_);
    for (const Extent& extent : expected_) read(source, extent, stop);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  is_finished_ = true, error_ = error;
  changed_.notify_all();
}

std::string file_checksum(const InputFile& file, const BytesListener& read) {
  const i64 size = file.size();
  BlockReader blocks;
  blocks.declare(file, 0, size, ReadMode::Direct);
  Checksum sum;
  for (i64 offset = 0; offset < size;) {
    const std::span<const std::byte> piece = blocks.at(file, offset, BlockReader::kPieceBytes);
    sum.update(piece);
    offset += static_cast<i64>(piece.size());
    if (read) read(static_cast<i64>(piece.size()));
  }
  return sum.hex();
}

}  // namespace mcpp
