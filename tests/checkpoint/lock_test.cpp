#include "checkpoint/directory/lock.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "base/machine.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

using FolderLockTest = CheckpointTest;

/// Starts a process that exits with the value of `body`, or with 3 if `body` throws; it never returns to the tests.
pid_t start_process(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    ::_exit(body());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "process %d: %s\n", ::getpid(), error.what());
    ::_exit(3);
  }
}

TEST_F(FolderLockTest, NamesHolderWhenFolderIsLocked) {
  const Path folder = folder_ / "made/on/demand";
  {
    FolderLock lock(folder, log_);
    const std::string error = error_of([&] { FolderLock second(folder, log_); });
    EXPECT_CONTAINS(error, "is in use by host " + host_name() + ", process " + std::to_string(::getpid()));
  }
  FolderLock again(folder, log_);
}

TEST_F(FolderLockTest, ReplacesSymbolicLinksNamedAsLock) {
  const Path target = folder_ / "target";
  write_file_atomic(target, "precious");
  const Path folder = folder_ / "run";
  std::filesystem::create_directory(folder);
  for (const char* name : {".lock", ".lock.guard"}) std::filesystem::create_symlink(target, folder / name);
  {
    FolderLock lock(folder, log_);
    EXPECT_NO_THROW(lock.check_held());
    EXPECT_FALSE(std::filesystem::is_symlink(folder / ".lock"));
  }
  EXPECT_EQ(read_text_file(target), "precious");
}

TEST_F(FolderLockTest, IsReleasedWhenProcessDies) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = start_process([&] {
    ::close(ready[0]);
    FolderLock lock(folder_, log_);
    const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
    return written == 1 ? 0 : 1;
  });
  ::close(ready[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_CONTAINS(error_of([&] { FolderLock second(folder_, log_); }), "process " + std::to_string(child));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  FolderLock next_lock(folder_, log_);
  ::close(ready[0]);
}

/// Process that holds the lock until it is asked to check it, and exits with 0 if it still holds it.
class LockHolder {
 public:
  LockHolder(const Path& folder, const Log& log, const SlurmJob& job) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const int other = ends[1];
    socket_ = ends[0];
    process_ = start_process([&] {
      ::close(socket_);
      FolderLock lock(folder, log, job);
      char byte = 'x';
      if (::send(other, &byte, 1, MSG_NOSIGNAL) != 1 || ::read(other, &byte, 1) != 1) return 2;
      return error_of([&] { lock.check_held(); }).empty() ? 0 : 1;
    });
    ::close(other);
    char byte = 0;
    EXPECT_EQ(::read(socket_, &byte, 1), 1);
  }
  bool release_and_check_held() {
    int status = 0;
    EXPECT_EQ(::send(socket_, "x", 1, MSG_NOSIGNAL), 1);
    ::waitpid(process_, &status, 0);
    ::close(socket_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WEXITSTATUS(status) == 0;
  }
  pid_t process() const { return process_; }

 private:
  int socket_ = -1;
  pid_t process_ = 0;
};

TEST_F(FolderLockTest, IsTakenOverOnlyByRequeuedSlurmJob) {
  const SlurmJob job{.name = "job 77 of cluster x", .requeued = 9};
  LockHolder old(folder_, log_, job);
  const std::vector<SlurmJob> others = {{},
                                        job,
                                        {.name = job.name, .requeued = 8},
                                        {.name = "job 7 of cluster x", .requeued = 10},
                                        {.name = "job 77 of cluster xy", .requeued = 10}};
  for (const SlurmJob& other : others) {
    const std::string error = error_of([&] { FolderLock lock(folder_, log_, other); });
    EXPECT_CONTAINS(error, str("process ", old.process(), ", Slurm job 77 of cluster x, requeued 9;"));
    EXPECT_CONTAINS(error, "remove " + (folder_ / ".lock").string());
  }
  const SlurmJob later{.name = job.name, .requeued = 10};
  FolderLock lock(folder_, log_, later);
  EXPECT_NO_THROW(lock.check_held());
  EXPECT_CONTAINS(error_of([&] { FolderLock third(folder_, log_, later); }), "requeued 10;");
  EXPECT_FALSE(old.release_and_check_held());
  // the file stays locked after the holder ended
  EXPECT_CONTAINS(error_of([&] { FolderLock third(folder_, log_, later); }), "requeued 10;");
}

/// Starts processes that try to take the lock at the same time. Returns how many succeed.
int winners(int contenders, const Path& folder, const Log& log, const SlurmJob& job) {
  int start[2], result[2], end[2];
  for (int* ends : {start, result, end}) EXPECT_EQ(::pipe(ends), 0);
  std::vector<pid_t> processes;
  for (int i = 0; i < contenders; ++i) {
    processes.push_back(start_process([&] {
      for (int* ends : {start, end}) ::close(ends[1]);
      char byte = 0;
      // Blocks until the test closes the pipe, so that all start together.
      if (::read(start[0], &byte, 1) != 0) return 2;
      std::unique_ptr<FolderLock> lock;
      const bool is_locked = error_of([&] { lock = std::make_unique<FolderLock>(folder, log, job); }).empty();
      if (::write(result[1], is_locked ? "y" : "n", 1) != 1) return 2;
      return ::read(end[0], &byte, 1) == 0 ? 0 : 2;  // keeps the lock until all processes have tried
    }));
  }
  for (int* ends : {start, end}) ::close(ends[0]);
  ::close(start[1]);
  int count = 0;
  for (int i = 0; i < contenders; ++i) {
    char byte = 0;
    EXPECT_EQ(::read(result[0], &byte, 1), 1);
    count += byte == 'y';
  }
  for (int descriptor : {end[1], result[0], result[1]}) ::close(descriptor);
  for (const pid_t process : processes) {
    int status = 0;
    ::waitpid(process, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  return count;
}

TEST_F(FolderLockTest, GrantsLockToOneOfManyContenders) {
  const std::string name = "job 77 of cluster x";
  for (int round = 0; round < 40; ++round) {
    const Path folder = folder_ / std::to_string(round);
    EXPECT_EQ(winners(4, folder, log_, {}), 1) << "free, round " << round;
    LockHolder old(folder, log_, {.name = name, .requeued = 1});
    EXPECT_EQ(winners(4, folder, log_, {.name = name, .requeued = 2}), 1) << "taken over, round " << round;
    old.release_and_check_held();
  }
}

TEST_F(FolderLockTest, IsNotTakenOverWhenOwnerIsUnreadable) {
  for (const std::string text : {"", "host a, process 7, Slurm job 77 of cluster x, requeued ",
                                 "host a, process 7, Slurm job 77 of cluster x, requeued 0 or so"}) {
    LockHolder old(folder_, log_, {});
    std::ofstream(folder_ / ".lock") << text;
    const SlurmJob job{.name = "job 77 of cluster x", .requeued = 1};
    EXPECT_CONTAINS(error_of([&] { FolderLock lock(folder_, log_, job); }), "is in use by") << text;
    old.release_and_check_held();
  }
}

TEST_F(FolderLockTest, StaysHeldWhenLockFileIsRemoved) {
  LockHolder holder(folder_, log_, {});
  EXPECT_TRUE(holder.release_and_check_held());
  LockHolder another(folder_, log_, {});
  std::filesystem::remove(folder_ / ".lock");  // removed manually, while no other process holds the lock
  EXPECT_TRUE(another.release_and_check_held());
}

TEST_F(FolderLockTest, RejectsUnwritableFolders) {
  write_file_atomic(folder_ / "file", "x");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock(folder_ / "file", log_); }), "file");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock(folder_ / "file/below", log_); }), "file");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock("/proc/nothing", log_); }), "/proc/nothing");
  std::filesystem::permissions(folder_, std::filesystem::perms(0555));
  const pid_t child = start_process([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 2;  // root can write to read-only folders
    const std::string error = error_of([&] { FolderLock lock(folder_, log_); });
    return error.find("cannot write in " + folder_.string()) == std::string::npos ? 1 : 0;
  });
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(FolderLockTest, RejectsFoldersInsideCheckpoint) {
  mcpp::create_directories(folder_ / "iter_0000010/below");
  write_file_atomic(folder_ / "iter_0000010/manifest.json", "{}");
  for (const char* inside : {"iter_0000010", "iter_0000010/", "iter_0000010/below", "iter_0000010/new/one"}) {
    const std::string error = error_of([&] { FolderLock lock(folder_ / inside, log_); });
    EXPECT_CONTAINS(error, (folder_ / "iter_0000010").string() + " is a checkpoint itself");
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "iter_0000010/new"));
  FolderLock outside(folder_, log_);
}

TEST_F(FolderLockTest, LeavesOnlyLockFile) {
  FolderLock lock(folder_, log_);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
  EXPECT_EQ(names, std::vector<std::string>{".lock"});
}

}  // namespace
}  // namespace mcpp
