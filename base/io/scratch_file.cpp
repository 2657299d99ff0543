#include "base/io/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

#include "base/machine.h"
#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

std::string bytes_text(i64 bytes) {
  return human_bytes(static_cast<double>(bytes));
}

bool is_memory_backed(const Path& folder) {
  struct statfs info {};
  MCPP_CHECK_SYSTEM(::statfs(folder.c_str(), &info) == 0, "cannot stat ", folder.string());
  return info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC || info.f_type == HUGETLBFS_MAGIC;
}

void check_is_on_disk(const Path& folder, const std::string& where) {
  check_input(!is_memory_backed(folder), where,
              " is in memory (tmpfs), which saves no memory; choose a folder on a disk");
}

/// Names the folder and its configuration key in messages.
std::string describe_folder(const Path& folder, std::string_view key) {
  return str(key, ": ", folder.string());
}

i64 free_bytes(const Path& folder) {
  struct statvfs info {};
  MCPP_CHECK_SYSTEM(::statvfs(folder.c_str(), &info) == 0, "cannot stat ", folder.string());
  return static_cast<i64>(info.f_bavail) * static_cast<i64>(info.f_frsize);
}

/// Returns the file size limit (ulimit -f). Exceeding it would kill the process with a signal.
i64 file_limit() {
  struct rlimit limit {};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<i64>(limit.rlim_cur) : std::numeric_limits<i64>::max();
}

void check_file_limit(i64 bytes, const std::string& where) {
  check_input(bytes <= file_limit(), where, " needs a file of ", bytes_text(bytes),
              ", more than the limit of file sizes (ulimit -f) allows: ", bytes_text(file_limit()));
}

/// Reserves the space on any file system by writing zeros.
int write_zeros(int file, i64 begin, i64 end) {
  constexpr i64 kChunkBytes = i64{1} << 20;
  end = aligned_bytes(end);
  const AlignedBytes zeros(std::min(kChunkBytes, end - begin));
  std::ranges::fill(zeros.bytes(), std::byte{0});
  while (begin < end) {
    const auto bytes = static_cast<std::size_t>(std::min(kChunkBytes, end - begin));
    const ssize_t done = ::pwrite(file, zeros.bytes().data(), bytes, begin);
    if (done < 0 && errno == EINTR) continue;
    if (const int error = write_error(done); error != 0) return error;
    begin += done;
  }
  return 0;
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
  const int error = bytes_ + bytes <= file_limit() ? reserve(descriptor_, bytes_, bytes_ + bytes) : EFBIG;
  if (error == 0) bytes_ += bytes;
  return error;
}

std::string ScratchFile::name() const {
  return str("the scratch file in ", folder_.string());
}

int ScratchFile::read(i64 offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t done = ::pread(descriptor_, to.data(), to.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done < 0 ? last_system_error() : EIO;
    to = to.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  return 0;
}

int ScratchFile::write(i64 offset, std::span<const std::byte> from) const {
  while (!from.empty()) {
    const ssize_t done = ::pwrite(descriptor_, from.data(), from.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (const int error = write_error(done); error != 0) return error;
    from = from.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
  return 0;
}

void ScratchFile::throw_transfer_error(std::string_view verb, int error, std::string_view what) const {
  fail(ExitCode::PeerLost, "cannot ", verb, " ", name(), ": ", system_reason(error), "; the stored part of ", what,
       " is lost. Restart the run; it resumes from its last checkpoint");
}

DiskSpace scratch_disk_space(const Path& folder, std::string_view key) {
  const std::string where = describe_folder(folder, key);
  Path found = std::filesystem::absolute(folder);
  std::error_code ignored;  // if the folder cannot be inspected, its parent is used
  while (!std::filesystem::exists(found, ignored) && found.has_relative_path()) found = found.parent_path();
  struct stat info {};
  MCPP_CHECK_SYSTEM(::stat(found.c_str(), &info) == 0, where, ": cannot stat ", found.string());
  MCPP_CHECK_ERROR(S_ISDIR(info.st_mode) ? 0 : ENOTDIR, where, ": ", found.string());
  check_is_on_disk(found, where);
  MCPP_CHECK_SYSTEM(::access(found.c_str(), W_OK | X_OK) == 0, where, ": cannot create a file in ", found.string());
  return {str(host_name(), ":", info.st_dev), free_bytes(found)};
}

AlignedBytes::AlignedBytes(i64 bytes)
    : size_(static_cast<std::size_t>(bytes)),
      data_(static_cast<std::byte*>(
          std::aligned_alloc(ScratchFile::kAlignment, static_cast<std::size_t>(aligned_bytes(bytes))))) {
  if (!data_) throw std::bad_alloc();
}

void AlignedBytes::Free::operator()(std::byte* data) const {
  std::free(data);
}

}  // namespace mcpp
