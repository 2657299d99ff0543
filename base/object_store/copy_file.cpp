#include "base/object_store/copy_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/machine.h"
#include "base/system_error.h"

namespace mcpp {

CopyFile::CopyFile(Path path, i64 bytes) : path_(std::move(path)), temporary_(temporary_name(path_)) {
  descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, "cannot create ", temporary_.string());
  const int error = bytes > 0 ? ::posix_fallocate(descriptor_, 0, bytes) : 0;
  if (error != 0) {  // the destructor does not run
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }
  MCPP_CHECK_ERROR(error, "cannot reserve ", bytes, " bytes for ", path_.string());
  direct_ = open_direct(temporary_, O_WRONLY);
}

CopyFile::~CopyFile() {
  if (direct_ >= 0) ::close(direct_);
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void CopyFile::write(i64 offset, std::span<const std::byte> bytes) {
  const bool is_aligned = offset % kAlignment == 0 && reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0;
  const i64 direct = direct_ >= 0 && is_aligned ? std::ssize(bytes) / kAlignment * kAlignment : 0;
  const auto split = static_cast<std::size_t>(direct);
  write_all(direct_, offset, bytes.first(split));
  write_all(descriptor_, offset + direct, bytes.subspan(split));
}

void CopyFile::write_all(int descriptor, i64 offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor, bytes.data(), bytes.size(), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL && descriptor == direct_) return write_all(descriptor_, offset, bytes);
    MCPP_CHECK_ERROR(write_error(done), "cannot write ", path_.string());
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += done;
  }
}

void CopyFile::commit() {
  MCPP_CHECK_SYSTEM(::fsync(descriptor_) == 0, "cannot flush ", path_.string());
  MCPP_CHECK_SYSTEM(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename ", temporary_.string(), " to ",
                    path_.string());
  temporary_.clear();
}

}  // namespace mcpp
