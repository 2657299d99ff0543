#include "base/file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/machine.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

class Descriptor {
 public:
  Descriptor(const Path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {
    MCPP_CHECK_SYSTEM(fd_ >= 0, "cannot open ", path.string());
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Path folder_of(const Path& path) {
  return path.has_parent_path() ? path.parent_path() : Path(".");
}

/// Opens an unnamed file that disappears with the process unless it is linked. Returns -1 if the file system (such as
/// NFS) does not support O_TMPFILE.
int open_without_name(const Path& folder) {
  if (::access("/proc/self/fd", X_OK) != 0) return -1;  // needed to link the file
  return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
}

/// Returns the path to write: the target of a symbolic link, so that the link is preserved. Throws for a device or pipe
/// such as /dev/null, which the rename would replace.
Path resolve_link_target(Path path) {
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  const bool is_file = std::filesystem::is_regular_file(status);
  check_input(is_file || !std::filesystem::exists(status) || std::filesystem::is_directory(status), path.string(),
              " is a device or pipe, which is never replaced; name a file");
  const bool is_link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, unknown));
  return is_link && is_file ? std::filesystem::canonical(path) : path;
}

}  // namespace

MappedFile::MappedFile(const Path& path) : path_(path) {
  check_path_exists(path);
  // O_NONBLOCK: a pipe without a writer is rejected below instead of blocking.
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  MCPP_CHECK_SYSTEM(::fstat(file.get(), &info) == 0, "cannot stat ", path.string());
  check_input(S_ISREG(info.st_mode), path.string(), " is not a regular file");
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  MCPP_CHECK_SYSTEM(data != MAP_FAILED, "cannot map ", path.string());
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AtomicFile::AtomicFile(Path path) : path_(resolve_link_target(std::move(path))) {
  descriptor_ = open_without_name(folder_of(path_));
  if (descriptor_ >= 0) return;
  temporary_ = temporary_name(path_);
  descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, "cannot create ", temporary_.string());
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    MCPP_CHECK_ERROR(write_error(done), "cannot write ", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void AtomicFile::write_at(u64 offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    MCPP_CHECK_ERROR(write_error(done), "cannot write ", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<u64>(done);
  }
}

void AtomicFile::commit() {
  MCPP_CHECK_SYSTEM(::fsync(descriptor_) == 0, "cannot flush ", path_.string());
  if (temporary_.empty()) {  // only a rename can replace a file; a link cannot
    const Path name = temporary_name(path_);
    const std::string without_name = str("/proc/self/fd/", descriptor_);
    MCPP_CHECK_SYSTEM(::linkat(AT_FDCWD, without_name.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0,
                      "cannot create ", name.string());
    temporary_ = name;
  }
  MCPP_CHECK_SYSTEM(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename ", temporary_.string(), " to ",
                    path_.string());
  temporary_.clear();  // as for an unnamed file
  MCPP_CHECK_SYSTEM(::close(std::exchange(descriptor_, -1)) == 0, "cannot close ", path_.string());
  fsync_path(folder_of(path_));
}

std::string read_text_file(const Path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

void write_file_atomic(const Path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void fsync_path(const Path& path) {
  const Descriptor entry(path, O_RDONLY);
  MCPP_CHECK_SYSTEM(::fsync(entry.get()) == 0, "cannot flush ", path.string());
}

void create_directories(const Path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  check_input(!error, "cannot create the directory ", path.string(), ": ", error.message());
}

std::string checksum_hex(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

void check_path_exists(const Path& path) {
  std::error_code why, ignored;
  if (std::filesystem::exists(std::filesystem::status(path, why))) return;
  const bool is_link = std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored));
  const std::string target = is_link ? std::filesystem::read_symlink(path, ignored).string() : "";
  fail(ExitCode::BadInput, "cannot open ", path.string(), is_link ? str(", a link to ", target) : "", ": ",
       why.message());
}

namespace {

constexpr u32 kXfs = 0x58465342;  // missing from some versions of linux/magic.h
/// Magic numbers of disk file systems. Containers see theirs as an overlay.
constexpr std::array<u32, 5> kDiskFileSystems = {EXT4_SUPER_MAGIC, kXfs, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                                 OVERLAYFS_SUPER_MAGIC};

}  // namespace

int open_direct(const Path& path, int flags) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return -1;
  if (std::ranges::find(kDiskFileSystems, static_cast<u32>(info.f_type)) == kDiskFileSystems.end()) return -1;
  return ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC);
}

}  // namespace mcpp
