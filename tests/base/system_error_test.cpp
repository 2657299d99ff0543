#include "base/system_error.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace mcpp {
namespace {

/// Returns a part of an error message and overwrites errno.
std::string change_errno() {
  errno = 0;
  return "part";
}

int fails_with(int error) {
  errno = error;
  return -1;
}

TEST(SystemErrorTest, KeepsErrnoOfFailedCallWhenMessagePartChangesIt) {
  const std::string error =
      test::error_of([&] { MCPP_CHECK_SYSTEM(fails_with(ENOSPC) == 0, "cannot write ", change_errno()); });
  EXPECT_EQ(error, "cannot write part: No space left on device");
}

TEST(SystemErrorTest, NeverReportsSuccess) {
  EXPECT_EQ(test::error_of([&] { MCPP_CHECK_SYSTEM(fails_with(0) == 0, "x"); }), "x: Input/output error");
  EXPECT_EQ(test::error_of([&] { MCPP_CHECK_ERROR(write_error(0), "x"); }), "x: No space left on device");
  EXPECT_EQ(test::error_of([&] { MCPP_CHECK_ERROR(write_error(fails_with(EDQUOT)), "x"); }), "x: Disk quota exceeded");
}

TEST(SystemErrorTest, DoesNotEvaluateMessageWithoutFailure) {
  errno = ENOENT;
  MCPP_CHECK_SYSTEM(true, change_errno());
  MCPP_CHECK_ERROR(write_error(1), change_errno());
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace mcpp
