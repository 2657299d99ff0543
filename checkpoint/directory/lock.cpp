#include "checkpoint/directory/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "base/machine.h"
#include "base/system_error.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/run_folder.h"

namespace mcpp {
namespace {

std::string read_owner(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  return size > 0 ? std::string(text.data(), static_cast<std::size_t>(size)) : "";
}

/// Returns the owner in the file that has this name now; another process may have replaced the open file.
std::string read_owner(const Path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return "";
  const std::string owner = read_owner(descriptor);
  ::close(descriptor);
  return owner;
}

/// Returns true if the open file still has this name.
bool is_current(int descriptor, const Path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// Opens a file of the lock; creates it if it does not exist. A symbolic link of that name is removed, not followed.
int open_lock_file(const Path& path) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  int descriptor = ::open(path.c_str(), kFlags, 0644);
  if (descriptor < 0 && errno == ELOOP && ::unlink(path.c_str()) == 0) descriptor = ::open(path.c_str(), kFlags, 0644);
  MCPP_CHECK_SYSTEM(descriptor >= 0, "cannot write in ", path.parent_path().string());
  return descriptor;
}

/// Mutual exclusion among processes that inspect and take a lock: otherwise another process could take it between the
/// inspection and the replacement of the file. Held for moments.
class Guard {
 public:
  explicit Guard(const Path& path) : path_(path) {
    constexpr std::chrono::milliseconds kPause{10}, kTimeout{30'000};
    for (auto waited = kPause - kPause; !try_lock(); waited += kPause) {
      check_input(waited < kTimeout, "another process has been holding ", path_.string(), " for ",
                  kTimeout.count() / 1000, " s; if that process and its host are down, remove that file");
      std::this_thread::sleep_for(kPause);
    }
  }
  ~Guard() {
    ::unlink(path_.c_str());
    ::close(descriptor_);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  bool try_lock() {
    descriptor_ = open_lock_file(path_);
    // FolderLock warns if locks are not supported. The previous owner removed the file when it released the lock, so
    // the name may belong to a different file now.
    const bool is_free = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    if (is_free && is_current(descriptor_, path_)) return true;
    ::close(descriptor_);
    return false;
  }

  Path path_;
  int descriptor_ = -1;
};

/// Returns an owner's text up to its job's restart count.
std::string job_text(const SlurmJob& job) {
  return str(", Slurm ", job.name, ", requeued ");
}

bool is_earlier_run(const std::string& owner, const SlurmJob& job) {
  const std::size_t position = job.name.empty() ? std::string::npos : owner.find(job_text(job));
  if (position == std::string::npos) return false;
  const auto requeued = parse_number<i64>(std::string_view(owner).substr(position + job_text(job).size()));
  return requeued && *requeued < job.requeued;
}

[[noreturn]] void fail_in_use(const Path& path, const std::string& owner) {
  fail(ExitCode::BadInput, "the checkpoint folder ", path.parent_path().string(), " is in use by ",
       owner.empty() ? "an unknown process" : owner,
       "; stop that job or choose a different folder. If that process and its host are certainly down, remove ",
       path.string());
}

}  // namespace

FolderLock::FolderLock(const Path& folder, const Log& log, const SlurmJob& job)
    : path_(run_folder(folder) / kLockName) {
  check_save_folder(folder);
  mcpp::create_directories(path_.parent_path());
  std::string own_name = str("host ", host_name(), ", process ", ::getpid());
  if (!job.name.empty()) own_name += str(job_text(job), job.requeued);
  {
    const Guard guard(path_.parent_path() / ".lock.guard");
    while (!try_lock(own_name, log)) {
      const std::string owner = read_owner(descriptor_);
      ::close(descriptor_);
      if (!is_earlier_run(owner, job)) fail_in_use(path_, owner);
      log.warn(str(path_.string(), ": taking over from ", owner, ", an earlier run of this job"));
      // The dead process's open file stays locked; the next file with this name is a new file.
      MCPP_CHECK_SYSTEM(::unlink(path_.c_str()) == 0 || errno == ENOENT, "cannot remove ", path_.string());
    }
  }
  try {
    check_writable(folder);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

bool FolderLock::try_lock(const std::string& owner, const Log& log) {
  descriptor_ = open_lock_file(path_);
  const bool is_locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  const int lock_error = is_locked ? 0 : last_system_error();
  if (lock_error == EWOULDBLOCK) return false;
  if (!is_locked) {
    log.warn(str("cannot lock ", path_.string(), ": ", system_reason(lock_error),
                 "; make sure that no other job saves checkpoints there"));
  }
  const bool is_written = ::ftruncate(descriptor_, 0) == 0 &&
                          ::pwrite(descriptor_, owner.data(), owner.size(), 0) == static_cast<ssize_t>(owner.size());
  const int owner_error = is_written ? 0 : last_system_error();
  if (!is_written) log.warn(str("cannot write the owner to ", path_.string(), ": ", system_reason(owner_error)));
  if (is_locked && is_written) owner_ = owner;
  return true;
}

void FolderLock::check_held() const {
  if (owner_.empty()) return;
  const std::string owner = read_owner(path_);
  check_input(owner.empty() || is_current(descriptor_, path_), "the checkpoint folder ", path_.parent_path().string(),
              " was taken over by ", owner, ": this run, ", owner_, ", cannot save there any longer");
}

FolderLock::~FolderLock() {
  ::close(descriptor_);
}

}  // namespace mcpp
