#include "checkpoint/format/block_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"
#include "base/io/open_direct.h"

namespace mcpp {
namespace {

i64 aligned_up(i64 bytes) {
  return (bytes + BlockMemory::kAlignment - 1) / BlockMemory::kAlignment * BlockMemory::kAlignment;
}

/// A file that is read from its begin or an aligned offset to `end`.
class StreamedFile {
 public:
  StreamedFile(const InputFile& file, i64 end, ReadWay way)
      : file_(file), end_(end), direct_(way == ReadWay::Direct ? open_direct(file.path(), O_RDONLY) : -1) {}
  ~StreamedFile() {
    if (direct_ >= 0) ::close(direct_);
  }
  StreamedFile(const StreamedFile&) = delete;
  StreamedFile& operator=(const StreamedFile&) = delete;

  /// The first `count` bytes of a block from an aligned offset; what comes after them may be overwritten.
  void read(i64 offset, std::span<std::byte> block, i64 count) {
    i64 done = 0;
    while (direct_ >= 0 && done < count) {
      const std::span<std::byte> rest = block.subspan(static_cast<std::size_t>(done));
      const ssize_t some =
          ::pread(direct_, rest.data(), static_cast<std::size_t>(aligned_up(count - done)), offset + done);
      if (some < 0 && errno == EINTR) continue;
      if (some <= 0 || some % BlockMemory::kAlignment != 0) {
        done += std::max<i64>(some, 0);  // the end of the file, or a disk that cannot
        break;
      }
      done += some;
    }
    if (done >= count) return;
    prefetch(offset + done);
    file_.read(offset + done, block.first(static_cast<std::size_t>(count)).subspan(static_cast<std::size_t>(done)));
  }

 private:
  /// Systems read ahead too little by themselves. In steps, because of a larger request some take only the beginning.
  void prefetch(i64 offset) {
    constexpr i64 kAhead = i64{32} << 20, kStep = i64{1} << 20;
    for (ahead_ = std::max(ahead_, offset); ahead_ < std::min(end_, offset + kAhead); ahead_ += kStep)
      file_.prefetch(ahead_, std::min(kStep, end_ - ahead_));
  }

  const InputFile& file_;
  i64 end_, ahead_ = 0;  // prefetched so far
  int direct_;           // past the page cache; -1 where that cannot be
};

}  // namespace

void BlockReader::expect(const InputFile& file, i64 offset, i64 bytes, ReadWay way) {
  constexpr i64 kGap = i64{1} << 16;  // what lies between costs less than another read
  Extent* last = expected_.empty() ? nullptr : &expected_.back();
  const bool goes_on =
      last && last->file == &file && last->way == way && last->end <= offset && offset <= last->end + kGap;
  if (goes_on)
    last->end = offset + bytes;
  else
    expected_.push_back({&file, offset / BlockMemory::kAlignment * BlockMemory::kAlignment, offset + bytes, way});
}

std::span<const std::byte> BlockReader::at(const InputFile& file, i64 offset, i64 most) {
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  std::unique_lock lock(mutex_);
  for (;; ++used_, changed_.notify_all()) {
    changed_.wait(lock, [&] { return used_ < filled_ || is_over_; });
    if (used_ == filled_ && error_) std::rethrow_exception(error_);
    MCPP_CHECK(used_ < filled_, file.path().string(), ": byte ", offset, " was not expected");
    const Extent& block = in_block(used_);
    if (!block.has(file, offset)) continue;
    const i64 count = std::min(most, block.end - offset);
    return memory_.block(used_).subspan(static_cast<std::size_t>(offset - block.begin),
                                        static_cast<std::size_t>(count));
  }
}

void BlockReader::read(const Extent& extent, const std::stop_token& stop) {
  StreamedFile file(*extent.file, extent.end, extent.way);
  for (i64 begin = extent.begin; begin < extent.end; begin += BlockMemory::kBlockBytes) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return filled_ - used_ < BlockMemory::kBlocks; })) return;
    const i64 number = filled_;
    lock.unlock();
    const i64 end = std::min(extent.end, begin + BlockMemory::kBlockBytes);
    file.read(begin, memory_.block(number), end - begin);
    lock.lock();
    in_block(number) = {extent.file, begin, end, extent.way};
    ++filled_;
    changed_.notify_all();
  }
}

void BlockReader::work(const std::stop_token& stop) {
  std::exception_ptr error;
  try {
    for (const Extent& extent : expected_) read(extent, stop);
  } catch (...) {
    error = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  is_over_ = true, error_ = error;
  changed_.notify_all();
}

std::string file_checksum(const InputFile& file, const BytesListener& read) {
  constexpr i64 kPieceBytes = i64{1} << 19;
  const i64 size = file.size();
  BlockReader blocks;
  blocks.expect(file, 0, size, ReadWay::Direct);
  Checksum sum;
  for (i64 offset = 0; offset < size;) {
    const std::span<const std::byte> piece = blocks.at(file, offset, kPieceBytes);
    sum.update(piece);
    offset += static_cast<i64>(piece.size());
    if (read) read(static_cast<i64>(piece.size()));
  }
  return sum.hex();
}

}  // namespace mcpp
