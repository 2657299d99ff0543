#include "checkpoint/folder/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/strings.h"

namespace mcpp {
namespace {

TEST(ProcessTag, IsStaleWhenItsProcessHasEnded) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) ::pause();
  }
  const std::string tag = str(host_name(), "-", child);
  EXPECT_FALSE(is_stale_tag(tag));
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(is_stale_tag(tag)) << "a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(is_stale_tag(tag));
}

TEST(ProcessTag, IsStaleOnOtherHostsAndInThisProcess) {
  EXPECT_TRUE(is_stale_tag(process_tag()));
  EXPECT_TRUE(is_stale_tag("some-other-host-1"));
  EXPECT_FALSE(is_stale_tag(host_name() + "-1")) << "it always runs";
  EXPECT_FALSE(is_stale_tag("1.0123456789abcdef"));
  EXPECT_FALSE(is_stale_tag("no number"));
}

}  // namespace
}  // namespace mcpp
