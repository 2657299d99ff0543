#include "checkpoint/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "checkpoint/process.h"

namespace mcpp {
namespace {

void probe(const Path& folder) {
  const Path path = folder / str(".probe-", process_tag());
  constexpr std::array<std::byte, 4096> kPage{};
  {
    AtomicFile file(path);
    file.write(kPage);
    file.commit();
  }
  check_input(::unlink(path.c_str()) == 0, "cannot remove ", path.string(), ": ", std::strerror(errno));
}

std::string owner_of(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "an unknown process";
}

}  // namespace

FolderLock::FolderLock(const Path& folder, const Log& log) {
  mcpp::create_directories(folder);
  const Path path = folder / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  check_input(descriptor_ >= 0, "cannot write in ", folder.string(), ": ", std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const std::string owner = owner_of(descriptor_);
    if (error == EWOULDBLOCK) {
      ::close(descriptor_);
      fail(ExitCode::BadInput, "the checkpoint folder ", folder.string(), " is in use by ", owner,
           "; stop that job or give another folder");
    }
    log.warn(str("cannot lock ", path.string(), ": ", std::strerror(error),
                 "; make sure that no other job saves checkpoints there"));
  }
  const std::string owner = str("host ", host_name(), ", process ", ::getpid());
  const bool written = ::ftruncate(descriptor_, 0) == 0 &&
                       ::pwrite(descriptor_, owner.data(), owner.size(), 0) == static_cast<ssize_t>(owner.size());
  if (!written) log.warn(str("cannot write the owner to ", path.string(), ": ", std::strerror(errno)));
  try {
    probe(folder);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace mcpp
