// Interleaving of two passes of a rank, so that each computes while the other waits for communication.
#pragma once
#include <functional>
#include <vector>

#include "base/fiber.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Runs a forward pass and a backward pass of different microbatches alternately on the calling thread, like Megatron
/// Core's combined 1F1B and DualPipe (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1). A pass yields
/// after it has started an exchange and before it waits for the result. Passes yield at points that do not depend on
/// timing, so all ranks of an exchange start their communication in the same order. Not thread-safe.
class PassInterleaver {
 public:
  /// Ranges of `profiler` that a pass has opened are closed while the other pass runs; null if nothing is recorded.
  explicit PassInterleaver(Profiler* profiler = nullptr) : profiler_(profiler) {}
  PassInterleaver(const PassInterleaver&) = delete;
  PassInterleaver& operator=(const PassInterleaver&) = delete;

  /// Runs both passes to their ends, starting with `first`. If one of them throws, unwinds the other and rethrows.
  void run(const std::function<void()>& first, const std::function<void()>& second);
  /// Called by a pass: lets the other one run until it yields, too, or ends. Returns immediately outside run() and
  /// after the other pass has ended.
  void yield();

 private:
  void run_second();
  std::vector<TimedRange*> pause_ranges() const;
  void resume_ranges(const std::vector<TimedRange*>& ranges) const;

  Profiler* profiler_;
  Fiber* second_ = nullptr;  // set in run()
  bool is_in_second_ = false, is_first_done_ = false;
  std::size_t outer_ranges_ = 0;  // open ranges that contain both passes
};

}  // namespace mcpp
