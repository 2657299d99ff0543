#include "checkpoint/format/block_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/integer_math.h"
#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {

void read_at(int descriptor, const Path& path, i64 offset, std::span<std::byte> to) {
  while (!to.empty()) {
    const ssize_t done = ::pread(descriptor, to.data(), to.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    MCPP_CHECK_SYSTEM(done >= 0, "cannot read ", path.string());
    check_input(done > 0, path.string(), " ends before byte ", offset + static_cast<i64>(to.size()));
    to = to.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
}

// O_NONBLOCK: opening a pipe must not wait for its writer.
InputFile::InputFile(const Path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, "cannot open ", path.string());
  struct stat info {};
  const bool is_file = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  if (!is_file) ::close(descriptor_);
  check_input(is_file, path.string(), " is not a regular file");
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void InputFile::prefetch(i64 offset, i64 bytes) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

i64 InputFile::size() const {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(descriptor_, &info) == 0, "cannot stat ", path_.string());
  return info.st_size;
}

namespace {

bool is_aligned(i64 offset, const std::byte* data) {
  constexpr i64 kMask = BlockMemory::kAlignment - 1;
  return (offset & kMask) == 0 && (reinterpret_cast<std::uintptr_t>(data) & kMask) == 0;
}

}  // namespace

// Only single pages are read back: read-ahead would load pages that are about to be overwritten.
OutputFile::OutputFile(const Path& path, const FileSystem& files)
    : path_(path),
      files_(files),
      descriptor_(::open(path.c_str(), O_RDWR | O_CLOEXEC)),
      direct_(open_direct(path, O_WRONLY)) {
  const int error = descriptor_ < 0 ? last_system_error() : 0;
  if (error != 0 && direct_ >= 0) ::close(direct_);  // the destructor does not run
  MCPP_CHECK_ERROR(error, "cannot open ", path.string());
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
}

OutputFile::~OutputFile() {
  ::close(descriptor_);
  if (direct_ >= 0) ::close(direct_);
}

i64 OutputFile::size() const {
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(descriptor_, &info) == 0, "cannot stat ", path_.string());
  return info.st_size;
}

void OutputFile::reserve(i64 bytes) {
  const int error = ::posix_fallocate(descriptor_, 0, bytes);
  MCPP_CHECK_ERROR(error, "cannot reserve ", bytes_text(bytes), " of the ", bytes_text(free_bytes(path_.parent_path())),
                   " that are free for ", path_.string());
}

OutputFile::Chunk OutputFile::next_chunk(i64 offset, std::span<const std::byte> bytes) const {
  constexpr std::size_t kChunk = std::size_t{1} << 18;  // larger chunks need contiguous pages that are hard to allocate
  const std::size_t aligned = bytes.size() / BlockMemory::kAlignment * BlockMemory::kAlignment;
  if (direct_ >= 0 && aligned > 0 && is_aligned(offset, bytes.data())) return {bytes.first(aligned), true};
  return {bytes.first(std::min(kChunk, bytes.size())), false};
}

void OutputFile::write(i64 offset, std::span<const std::byte> bytes) {
  const i64 begin = offset;
  while (!bytes.empty()) {
    const Chunk chunk = next_chunk(offset, bytes);
    const ssize_t done = files_.pwrite(chunk.is_direct ? direct_ : descriptor_, chunk.bytes, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL &&
        chunk.is_direct) {  // some file systems open a file for direct I/O but cannot write it
      ::close(std::exchange(direct_, -1));
      continue;
    }
    MCPP_CHECK_ERROR(write_error(done), "cannot write ", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  // Starts writing back cached pages while the next bytes are prepared. Errors are reported by flush().
  ::sync_file_range(descriptor_, begin, offset - begin, SYNC_FILE_RANGE_WRITE);
}

void OutputFile::flush() {
  MCPP_CHECK_SYSTEM(files_.fsync(descriptor_) == 0, "cannot flush ", path_.string());
}

std::string bytes_text(i64 bytes) {
  return str(human_bytes(static_cast<double>(bytes)), " (", bytes, " bytes)");
}

BlockMemory::BlockMemory() {
  ::madvise(memory_.bytes().data(), memory_.bytes().size(), MADV_HUGEPAGE);
}

std::span<std::byte> BlockMemory::block(i64 number) const {
  return memory_.bytes().subspan(static_cast<std::size_t>(number % kBlocks * kBlockBytes), kBlockBytes);
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

BlockReader::BlockReader() = default;
BlockReader::~BlockReader() = default;

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

void BlockReader::start() {
  for (const Extent& extent : expected_) {
    for (i64 begin = extent.begin; begin < extent.end; begin += BlockMemory::kBlockBytes)
      blocks_.push_back({extent.file, begin, std::min(extent.end, begin + BlockMemory::kBlockBytes), extent.mode});
  }
  source_ = std::make_unique<Source>(expected_);
  thread_.emplace(1);
  for (i64 i = 0; i < BlockMemory::kBlocks; ++i) start_next_read();
}

void BlockReader::start_next_read() {
  const std::size_t number = used_ + reads_.size();
  if (number == blocks_.size()) return;
  reads_.push_back(thread_->submit([this, number] {
    const Extent& block = blocks_[number];
    source_->read(block, block.begin, memory_.block(static_cast<i64>(number)), block.end - block.begin);
  }));
}

std::span<const std::byte> BlockReader::at(const InputFile& file, i64 offset, i64 max_bytes, i64 unit) {
  if (!thread_) start();
  for (;; ++used_, reads_.pop_front(), start_next_read()) {
    MCPP_CHECK(!reads_.empty(), file.path().string(), ": byte ", offset, " was not expected");
    reads_.front().get();
    const Extent& block = blocks_[used_];
    if (!block.has(file, offset, unit)) continue;
    const i64 count = std::min(max_bytes, block.end - offset) / unit * unit;
    return memory_.block(static_cast<i64>(used_))
        .subspan(static_cast<std::size_t>(offset - block.begin), static_cast<std::size_t>(count));
  }
}

std::string file_checksum(const InputFile& file, const BytesListener& read) {
  const i64 size = file.size();
  BlockReader blocks;
  blocks.declare(file, 0, size, ReadMode::Direct);
  Checksum sum;
  for (i64 offset = 0; offset < size;) {
    const std::span<const std::byte> chunk = blocks.at(file, offset, BlockReader::kChunkBytes);
    sum.update(chunk);
    offset += static_cast<i64>(chunk.size());
    if (read) read(static_cast<i64>(chunk.size()));
  }
  return sum.hex();
}

void BlockWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (in_block_ == 0) wait_until_in_flight(BlockMemory::kBlocks - 1);
    const std::span<std::byte> space = memory_.block(filled_).subspan(in_block_);
    const std::size_t count = std::min(bytes.size(), space.size());
    std::memcpy(space.data(), bytes.data(), count);
    in_block_ += count;
    if (count == space.size()) start_write();
    bytes = bytes.subspan(count);
  }
}

void BlockWriter::finish() {
  if (in_block_ > 0) start_write();
  wait_until_in_flight(0);
}

void BlockWriter::start_write() {
  const std::span<const std::byte> bytes = memory_.block(filled_++).first(std::exchange(in_block_, 0));
  writes_.push_back(thread_.submit([this, bytes, offset = offset_] { file_.write(offset, bytes); }));
  offset_ += static_cast<i64>(bytes.size());
}

void BlockWriter::wait_until_in_flight(std::size_t count) {
  for (; writes_.size() > count; writes_.pop_front()) writes_.front().get();
}

}  // namespace mcpp
