#include "base/io/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/strings.h"
#include "base/system_error.h"

namespace mcpp {

AppendFile::AppendFile(Path path, std::string what, StoredRef<Log> log)
    : path_(std::move(path)), content_name_(std::move(what)), log_(&log.get()) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, path_.string(), ": cannot open the file for ", content_name_);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept {
  *this = std::move(other);
}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(content_name_, other.content_name_);
  std::swap(log_, other.log_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(has_warned_, other.has_warned_);
  return *this;
}

void AppendFile::append(std::string_view record) {
  if (!is_open()) return;
  const off_t begin = ::lseek(descriptor_, 0, SEEK_END);
  ssize_t written = 0;
  do {
    written = ::write(descriptor_, record.data(), record.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(record.size())) return;
  const std::string reason = system_reason(written < 0 ? last_system_error() : ENOSPC);
  // A truncated record would corrupt the next one as well. If it cannot be removed here, resuming drops it.
  const bool is_restored = written <= 0 || (begin >= 0 && ::ftruncate(descriptor_, begin) == 0);
  if (!has_warned_) {
    log_->warn(str(path_.string(), ": ", content_name_, " are being lost: ", reason,
                   is_restored ? "" : "; the file ends in an incomplete record"));
  }
  has_warned_ = true;
}

}  // namespace mcpp
