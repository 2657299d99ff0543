#include "base/fiber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace mcpp::fiber_test {
namespace {

using testing::ElementsAre;

TEST(FiberTest, RunsInPiecesOnThreadOfCaller) {
  std::vector<int> order;
  Fiber* self = nullptr;
  const std::thread::id thread = std::this_thread::get_id();
  Fiber fiber([&] {
    for (const int i : {1, 3, 5}) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      order.push_back(i);
      self->suspend();
    }
  });
  self = &fiber;
  for (const int i : {0, 2, 4}) {
    order.push_back(i);
    fiber.resume();
    EXPECT_FALSE(fiber.is_done());
  }
  fiber.resume();
  EXPECT_TRUE(fiber.is_done());
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(FiberTest, RethrowsExceptionFromResume) {
  Fiber* self = nullptr;
  Fiber fiber([&] {
    self->suspend();
    throw std::runtime_error("planned");
  });
  self = &fiber;
  fiber.resume();
  EXPECT_THROW(fiber.resume(), std::runtime_error);
  EXPECT_TRUE(fiber.is_done());
}

struct SetAtEnd {
  bool& is_set;
  ~SetAtEnd() { is_set = true; }
};

TEST(FiberTest, DestructorUnwindsSuspendedFunction) {
  bool has_unwound = false, has_returned = false;
  {
    Fiber* self = nullptr;
    Fiber fiber([&] {
      const SetAtEnd guard{has_unwound};
      self->suspend();
      has_returned = true;
    });
    self = &fiber;
    fiber.resume();
    EXPECT_FALSE(has_unwound);
  }
  EXPECT_TRUE(has_unwound);
  EXPECT_FALSE(has_returned);
}

/// The stack of the caller unwinds at the same time.
TEST(FiberTest, DestructorUnwindsDuringException) {
  bool has_unwound = false;
  const auto fail_with_suspended_fiber = [&] {
    Fiber* self = nullptr;
    Fiber fiber([&] {
      const SetAtEnd guard{has_unwound};
      self->suspend();
    });
    self = &fiber;
    fiber.resume();
    throw std::runtime_error("planned");
  };
  EXPECT_THROW(fail_with_suspended_fiber(), std::runtime_error);
  EXPECT_TRUE(has_unwound);
  EXPECT_EQ(std::uncaught_exceptions(), 0);
}

TEST(FiberTest, DoesNotRunWithoutResume) {
  bool has_run = false;
  {
    const Fiber fiber([&] { has_run = true; });
  }
  EXPECT_FALSE(has_run);
}

}  // namespace
}  // namespace mcpp::fiber_test
