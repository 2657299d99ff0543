#include "megatron_cpp/train/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace mcpp {
namespace {

bool is_blocked(int signal) {
  sigset_t set;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
  return sigismember(&set, signal) == 1;
}

TEST(SignalWatch, TakesSignalsOnAThreadOfItsOwn) {
  {
    const SignalWatch watch;
    EXPECT_EQ(watch.received(), 0);
    EXPECT_TRUE(is_blocked(SIGUSR1));
    std::thread([] { EXPECT_TRUE(is_blocked(SIGTERM)); }).join();
    ::kill(::getpid(), SIGUSR1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (watch.received() == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(watch.received(), SIGUSR1);
  }
  EXPECT_FALSE(is_blocked(SIGUSR1));
  const SignalWatch next;
  EXPECT_EQ(next.received(), 0);
}

}  // namespace
}  // namespace mcpp
