#include "checkpoint/lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/process.h"
#include "tests/checkpoint/fixture.h"

namespace mcpp {
namespace {

using Lock = CheckpointTest;

TEST_F(Lock, SecondOwnerIsRefusedAndTheFirstNamed) {
  const Path folder = folder_ / "made/on/demand";
  {
    FolderLock lock(folder, log_);
    const std::string error = error_of([&] { FolderLock second(folder, log_); });
    EXPECT_CONTAINS(error, "is in use by host " + host_name() + ", process " + std::to_string(::getpid()));
  }
  FolderLock again(folder, log_);
}

TEST_F(Lock, GoesWithItsProcess) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    FolderLock lock(folder_, log_);
    const ssize_t written = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(written == 1 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_CONTAINS(error_of([&] { FolderLock second(folder_, log_); }), "process " + std::to_string(child));
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  FolderLock mine(folder_, log_);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Lock, FindsFoldersThatCannotBeWritten) {
  write_file_atomic(folder_ / "file", "x");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock(folder_ / "file", log_); }), "file");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock(folder_ / "file/below", log_); }), "file");
  EXPECT_CONTAINS(error_of([&] { FolderLock lock("/proc/nothing", log_); }), "/proc/nothing");
  std::filesystem::permissions(folder_, std::filesystem::perms(0555));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);  // root writes in read-only folders
    const std::string error = error_of([&] { FolderLock lock(folder_, log_); });
    ::_exit(error.find("cannot write in " + folder_.string()) == std::string::npos ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Lock, LeavesOnlyTheLockFile) {
  FolderLock lock(folder_, log_);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) names.push_back(entry.path().filename());
  EXPECT_EQ(names, std::vector<std::string>{".lock"});
}

}  // namespace
}  // namespace mcpp
