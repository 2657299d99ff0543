#include "base/io/scratch_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/io/file_system.h"
#include "base/machine.h"
#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

std::string bytes_text(i64 bytes) {
  return human_bytes(static_cast<double>(bytes));
}

void check_is_on_disk(const Path& folder, const std::string& where) {
  check_input(!is_memory_backed(folder), where,
              " is in memory (tmpfs), which saves no memory; choose a folder on a disk");
}

/// Names the folder and its configuration key in messages.
std::string describe_folder(const Path& folder, std::string_view key) {
  return str(key, ": ", folder.string());
}

void check_file_limit(i64 bytes, const std::string& where) {
  check_input(bytes <= max_file_bytes(), where, " needs a file of ", bytes_text(bytes),
              ", more than the limit of file sizes (ulimit -f) allows: ", bytes_text(max_file_bytes()));
}

/// Reserves the space on any file system by writing zeros.
int write_zeros(int file, i64 begin, i64 end) {
  constexpr i64 kChunkBytes = i64{1} << 20;
  end = aligned_bytes(end);
  const AlignedBytes zeros(std::min(kChunkBytes, end - begin));
  std::ranges::fill(zeros.bytes(), std::byte{0});
  int error = 0;
  for (; begin < end && error == 0; begin += kChunkBytes)
    error = transfer_now(
        {FileTransfer::Kind::Write, file, begin, zeros.bytes().data(), std::min(kChunkBytes, end - begin)});
  return error;
}

/// Returns 0, or the errno if the bytes cannot be reserved. Avoids posix_fallocate(), whose fallback on file systems
/// without reservation (ext2, NFS 3) writes single bytes, which is not direct I/O.
int reserve(int file, i64 begin, i64 end) {
  int result = 0;
  do result = ::fallocate(file, 0, begin, end - begin);
  while (result != 0 && errno == EINTR);
  if (result == 0) return 0;
  return errno == EOPNOTSUPP || errno == ENOSYS ? write_zeros(file, begin, end) : errno;
}

constexpr const char* kName = "scratch";

/// Removes files left by processes of this host that died between the two steps of open_scratch(). They are small, but
/// nothing else removes them. Files of other hosts may belong to running processes and are kept.
void remove_leftovers(const Path& folder) {
  const std::string prefix = str(kName, ".tmp-"), own_host = host_name() + "-";
  std::error_code ignored;  // entries that cannot be listed or removed are retried next time
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix + own_host) || !is_stale_tag(name.substr(prefix.size()))) continue;
    ::unlink(entry.path().c_str());
  }
}

/// Creates the file unnamed where the file system supports it; otherwise unlinks its name immediately.
int open_scratch(const Path& folder, int flags) {
  const int unnamed = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
  if (unnamed >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return unnamed;
  const Path name = temporary_name(folder / kName);
  const int descriptor = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
  if (descriptor >= 0) ::unlink(name.c_str());
  return descriptor;
}

}  // namespace

ScratchFile::ScratchFile(const Path& folder, i64 bytes, std::string_view key) : folder_(folder), bytes_(bytes) {
  const std::string where = describe_folder(folder, key);
  mcpp::create_directories(folder);
  check_is_on_disk(folder, where);
  check_file_limit(bytes, where);
  remove_leftovers(folder);
  descriptor_ = open_scratch(folder, O_DIRECT);
  is_direct_ = descriptor_ >= 0;
  if (!is_direct_ && errno == EINVAL) descriptor_ = open_scratch(folder, 0);
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, where, ": cannot create a file in this folder");
  const i64 free = free_bytes(folder);
  const int error = bytes <= free ? reserve(descriptor_, 0, bytes) : ENOSPC;
  if (error == 0) return;
  ::close(descriptor_);  // the destructor does not run
  MCPP_CHECK_ERROR(error, where, ": needs ", bytes_text(bytes), " for this rank, of the ", bytes_text(free),
                   " that are free; free some, or choose a different disk");
}

ScratchFile::~ScratchFile() {
  ::close(descriptor_);
}

int ScratchFile::extend(i64 bytes) {
  const int error = bytes_ + bytes <= max_file_bytes() ? reserve(descriptor_, bytes_, bytes_ + bytes) : EFBIG;
  if (error == 0) bytes_ += bytes;
  return error;
}

std::string ScratchFile::name() const {
  return str("the scratch file in ", folder_.string());
}

std::string ScratchFile::describe(i64 bytes, const TransferQueue& queue) const {
  return str("on the disk of ", folder_.string(), ", ", bytes_text(bytes), ", by ", queue.name(),
             is_direct_ ? " with direct I/O" : " through the page cache: the disk does not support direct I/O");
}

void ScratchFile::throw_transfer_error(std::string_view verb, int error, std::string_view what) const {
  fail(ExitCode::PeerLost, "cannot ", verb, " ", name(), ": ", system_reason(error), "; the stored part of ", what,
       " is lost. Restart the run; it resumes from its last checkpoint");
}

DiskSpace scratch_disk_space(const Path& folder, std::string_view key) {
  const std::string where = describe_folder(folder, key);
  const Path existing = nearest_existing(folder);
  struct stat info {};
  MCPP_CHECK_SYSTEM(::stat(existing.c_str(), &info) == 0, where, ": cannot stat ", existing.string());
  MCPP_CHECK_ERROR(S_ISDIR(info.st_mode) ? 0 : ENOTDIR, where, ": ", existing.string());
  check_is_on_disk(existing, where);
  MCPP_CHECK_SYSTEM(::access(existing.c_str(), W_OK | X_OK) == 0, where, ": cannot create a file in ",
                    existing.string());
  return {file_system_id(existing), free_bytes(existing)};
}

AlignedBytes::AlignedBytes(i64 bytes, i64 alignment)
    : size_(static_cast<std::size_t>(bytes)),
      data_(static_cast<std::byte*>(std::aligned_alloc(static_cast<std::size_t>(alignment),
                                                       static_cast<std::size_t>(round_up(bytes, alignment))))) {
  if (!data_) throw std::bad_alloc();
}

void AlignedBytes::Free::operator()(std::byte* data) const {
  std::free(data);
}

FileRegion::FileRegion(std::shared_ptr<const ScratchFile> file, i64 offset, i64 bytes, std::string name)
    : file_(std::move(file)),
      offset_(offset),
      bytes_(bytes),
      name_(std::move(name)),
      sums_(static_cast<std::size_t>(ceil_div(bytes, kChunk))) {}

i64 FileRegion::chunk_bytes(std::size_t chunk) const {
  return std::min(kChunk, offset_ + bytes_ - offset_of(chunk));
}

bool FileRegion::is_blank() const {
  return std::ranges::all_of(sums_, [](const std::string& sum) { return sum.empty(); });
}

void FileRegion::record_checksums(std::span<const std::byte> bytes) {
  MCPP_CHECK(static_cast<i64>(bytes.size()) == bytes_, name_);
  for (std::size_t p = 0; p < chunks(); ++p)
    sums_[p] = checksum_hex(bytes.subspan(p * kChunk, static_cast<std::size_t>(chunk_bytes(p))));
}

void FileRegion::check_chunk(std::size_t chunk, std::span<const std::byte> bytes) const {
  if (checksum_hex(bytes) == sums_[chunk]) return;
  fail(ExitCode::PeerLost, file_->name(), ": ", name_, " differs from its checksum: the disk or the memory of this ",
       "node is unreliable. Exclude the node or choose a different folder, and restart; the run resumes from its "
       "last checkpoint");
}

void FileRegion::verify(std::span<std::byte> bytes) const {
  MCPP_CHECK(static_cast<i64>(bytes.size()) == bytes_, name_);
  for (std::size_t p = 0; p < chunks(); ++p) {
    const auto chunk = bytes.subspan(p * kChunk, static_cast<std::size_t>(chunk_bytes(p)));
    if (sums_[p].empty())
      std::memset(chunk.data(), 0, chunk.size());
    else
      check_chunk(p, chunk);
  }
}

void FileRegion::read_chunk(std::size_t chunk, std::span<std::byte> to) const {
  if (sums_[chunk].empty()) {
    std::memset(to.data(), 0, to.size());
    return;
  }
  const int error = transfer_now(file_->transfer(FileTransfer::Kind::Read, offset_of(chunk), to));
  if (error != 0) file_->throw_transfer_error("read", error, name_);
  check_chunk(chunk, to);
}

template <class F>
void FileRegion::for_each_chunk(i64 begin, i64 end, const F& f) const {
  const AlignedBytes buffer(std::min(kChunk, bytes_));
  MCPP_CHECK(begin >= 0 && end <= bytes_, name_);
  for (i64 at = begin; at < end;) {
    const auto chunk = static_cast<std::size_t>(at / kChunk);
    const i64 first = at % kChunk, count = std::min(end - at, chunk_bytes(chunk) - first);
    const std::span<std::byte> all = buffer.bytes().first(static_cast<std::size_t>(chunk_bytes(chunk)));
    f(chunk, all, all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)));
    at += count;
  }
}

void FileRegion::read(i64 begin, std::span<std::byte> to) const {
  for_each_chunk(begin, begin + static_cast<i64>(to.size()),
                 [&](std::size_t chunk, std::span<std::byte> all, std::span<const std::byte> wanted) {
                   read_chunk(chunk, all);
                   std::ranges::copy(wanted, to.begin());
                   to = to.subspan(wanted.size());
                 });
}

void FileRegion::write(i64 begin, std::span<const std::byte> from) {
  for_each_chunk(begin, begin + static_cast<i64>(from.size()),
                 [&](std::size_t chunk, std::span<std::byte> all, std::span<std::byte> changed) {
                   if (changed.size() < all.size()) read_chunk(chunk, all);
                   std::ranges::copy(from.first(changed.size()), changed.begin());
                   from = from.subspan(changed.size());
                   const int error = transfer_now(file_->transfer(FileTransfer::Kind::Write, offset_of(chunk), all));
                   if (error != 0) file_->throw_transfer_error("write", error, name_);
                   sums_[chunk] = checksum_hex(all);
                 });
}

}  // namespace mcpp
