#include "data/preprocess/distributed/shared_output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/system_error.h"

namespace mcpp {
namespace {

/// Faults the pages in. If the source is a mapped file whose pages are absent, the kernel writes a fraction of a page
/// at a time and clears the rest of the destination page each time.
void fault_in_pages(std::span<const std::byte> bytes) {
  constexpr std::size_t kPage = 4096;
  for (std::size_t i = 0; i < bytes.size(); i += kPage) [[maybe_unused]] const volatile std::byte read = bytes[i];
}

}  // namespace

SharedOutputFile::SharedOutputFile(Path path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  MCPP_CHECK_SYSTEM(descriptor_ >= 0, path_.string(), ": cannot be written");
}

SharedOutputFile::~SharedOutputFile() {
  ::close(descriptor_);
}

void SharedOutputFile::write_at(i64 offset, std::span<const std::byte> bytes) const {
  const auto size = static_cast<off_t>(bytes.size());
  fault_in_pages(bytes);
  for (off_t at = offset; !bytes.empty();) {
    const ssize_t done = ::pwrite(descriptor_, bytes.data(), bytes.size(), at);
    if (done < 0 && errno == EINTR) continue;
    MCPP_CHECK_ERROR(write_error(done), path_.string(), ": cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    at += done;
  }
  // starts writeback; sync() reports its errors
  ::sync_file_range(descriptor_, offset, size, SYNC_FILE_RANGE_WRITE);
}

void SharedOutputFile::sync() const {
  MCPP_CHECK_SYSTEM(::fsync(descriptor_) == 0, path_.string(), ": cannot be written");
}

void SharedOutputFile::truncate(i64 bytes) const {
  MCPP_CHECK_SYSTEM(::ftruncate(descriptor_, bytes) == 0, path_.string(), ": cannot be truncated");
}

}  // namespace mcpp
