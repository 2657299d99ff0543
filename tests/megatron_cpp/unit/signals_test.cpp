#include "megatron_cpp/train/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace mcpp {
namespace {

bool is_blocked(int signal) {
  sigset_t set;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &set);
  return sigismember(&set, signal) == 1;
}

TEST(SignalWatchTest, ReceivesSignalsOnItsOwnThread) {
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

void wait_for(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
}

TEST(SignalWatchTest, FirstRankOfNodeLogsSignalAndOthersReceiveIt) {
  const std::shared_ptr<void> memory(std::calloc(1, static_cast<std::size_t>(StatusBoard::bytes_for(2))), std::free);
  StatusBoard board(memory, 2, 0, 6), other(memory, 2, 1, 7);
  EXPECT_EQ(other.recorded_signal(), 0);
  std::vector<int> logged_signals;
  {
    const SignalWatch watch(&board, [&](int signal) { logged_signals.push_back(signal); });
    for (const int signal : {SIGTERM, SIGUSR1, SIGTERM}) {
      ::kill(::getpid(), signal);
      wait_for([&] { return watch.received() != 0; });
    }
    wait_for([&] { return other.recorded_signal() != 0; });
    EXPECT_EQ(watch.received(), SIGTERM);
  }
  EXPECT_EQ(other.recorded_signal(), SIGTERM);
  EXPECT_EQ(logged_signals, std::vector{SIGTERM});
  EXPECT_FALSE(other.record_signal(SIGINT)) << "the signal is known already";
}

}  // namespace
}  // namespace mcpp
