#include "base/program/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

namespace mcpp::standard_descriptors_test {
namespace {

/// Returns the descriptor of a file that a process opens after closing these descriptors.
int number_of_next_file(const std::vector<int>& closed) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int descriptor : closed) ::close(descriptor);
    open_closed_standard_descriptors();
    ::_exit(::open("/dev/null", O_RDONLY));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreamsTest, ClosedDescriptorsAreNotReusedForFiles) {
  const int otherwise = number_of_next_file({});
  for (const std::vector<int>& closed : std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}})
    EXPECT_EQ(number_of_next_file(closed), otherwise);
}

}  // namespace
}  // namespace mcpp::standard_descriptors_test
