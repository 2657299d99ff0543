// Device whose waits take as long as the test specifies.
#pragma once
#include <gtest/gtest.h>

#include <utility>

#include "tensor/host/device_wait_timer.h"

namespace mcpp::test {

class FakeWaitTimer final : public DeviceWaitTimer {
 public:
  void begin() noexcept override {
    EXPECT_FALSE(std::exchange(is_open_, true));
    ++count_;
  }
  void end() noexcept override { EXPECT_TRUE(std::exchange(is_open_, false)); }
  double take_seconds() noexcept override { return std::exchange(ended_, 0.0); }

  void wait_for_device() override {
    EXPECT_TRUE(is_open_) << "the host waits only while the device timer runs";
    ++host_count_;
  }

  int host_count() const { return host_count_; }  ///< number of times the host waited for the device
  int count() const { return count_; }
  bool is_open() const { return is_open_; }
  /// Ends all waits so far, which took this many seconds in total.
  void end_all(double seconds) { ended_ += seconds; }

 private:
  int count_ = 0, host_count_ = 0;
  bool is_open_ = false;
  double ended_ = 0;
};

}  // namespace mcpp::test
