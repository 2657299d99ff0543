#include "checkpoint/folder/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/check.h"
#include "checkpoint/folder/process.h"

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

std::string read_owner(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "";
}

/// What the file of this name says now; another process may have replaced the one that is open.
std::string read_owner(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  const std::string owner = read_owner(descriptor);
  ::close(descriptor);
  return owner;
}

/// Whether the open file is still the one of this name.
bool is_current(int descriptor, const Path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// All of an owner's text up to how often its job was queued again.
std::string job_text(const SlurmJob& job) {
  return str(", Slurm ", job.name, ", requeued ");
}

bool is_earlier_run(const std::string& owner, const SlurmJob& job) {
  const std::size_t place = job.name.empty() ? std::string::npos : owner.find(job_text(job));
  if (place == std::string::npos) return false;
  const char* number = owner.data() + place + job_text(job).size();
  i64 requeued = 0;
  const auto [end, error] = std::from_chars(number, owner.data() + owner.size(), requeued);
  return error == std::errc() && end == owner.data() + owner.size() && requeued < job.requeued;
}

void refuse(const Path& path, const std::string& owner) {
  fail(ExitCode::BadInput, "the checkpoint folder ", path.parent_path().string(), " is in use by ",
       owner.empty() ? "an unknown process" : owner,
       "; stop that job or give another folder. If that process is gone for certain, with its machine, remove ",
       path.string());
}

}  // namespace

FolderLock::FolderLock(const Path& folder, const Log& log, const SlurmJob& job) : path_(folder / ".lock") {
  mcpp::create_directories(folder);
  std::string me = str("host ", host_name(), ", process ", ::getpid());
  if (!job.name.empty()) me += str(job_text(job), job.requeued);
  while (!is_taken(me, log)) {
    const std::string owner = read_owner(descriptor_);
    const bool is_still_there = is_current(descriptor_, path_);
    ::close(descriptor_);
    if (!is_still_there) continue;  // another process takes it over just now
    if (!is_earlier_run(owner, job)) refuse(path_, owner);
    log.warn(str(path_.string(), ": is taken over from ", owner, ", an earlier run of this job"));
    // What it has open stays locked, by nobody who is alive; the next file of this name is another.
    check_input(::unlink(path_.c_str()) == 0 || errno == ENOENT, "cannot remove ", path_.string(), ": ",
                std::strerror(errno));
  }
  try {
    check_held();  // who had the file open while it was replaced has locked one that nobody else will find
    probe(folder);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

bool FolderLock::is_taken(const std::string& owner, const Log& log) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  check_input(descriptor_ >= 0, "cannot write in ", path_.parent_path().string(), ": ", std::strerror(errno));
  const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno == EWOULDBLOCK) return false;
  if (!locked) {
    log.warn(str("cannot lock ", path_.string(), ": ", std::strerror(errno),
                 "; make sure that no other job saves checkpoints there"));
  }
  const bool written = ::ftruncate(descriptor_, 0) == 0 &&
                       ::pwrite(descriptor_, owner.data(), owner.size(), 0) == static_cast<ssize_t>(owner.size());
  if (!written) log.warn(str("cannot write the owner to ", path_.string(), ": ", std::strerror(errno)));
  if (locked && written) owner_ = owner;
  return true;
}

void FolderLock::check_held() const {
  if (owner_.empty()) return;
  const std::string owner = read_owner(path_);
  check_input(owner.empty() || is_current(descriptor_, path_), "the checkpoint folder ", path_.parent_path().string(),
              " was taken over by ", owner, ": this run, ", owner_, ", makes no more checkpoints there");
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace mcpp
