#include "parallel/pp/pass_interleaver.h"

#include "base/check.h"

namespace mcpp {

void PassInterleaver::run(const std::function<void()>& first, const std::function<void()>& second) {
  MCPP_CHECK(!second_, "two pairs of passes run at the same time");
  Fiber fiber(second);
  second_ = &fiber;
  is_first_done_ = false;
  outer_ranges_ = profiler_ ? profiler_->open_ranges().size() : 0;
  const struct Reset {
    PassInterleaver& self;
    ~Reset() { self.second_ = nullptr, self.is_in_second_ = false; }
  } reset{*this};
  first();
  is_first_done_ = true;
  if (!fiber.is_done()) run_second();
}

void PassInterleaver::yield() {
  if (!second_) return;
  if (!is_in_second_) {
    if (!second_->is_done()) run_second();
    return;
  }
  if (is_first_done_) return;
  const std::vector<TimedRange*> ranges = pause_ranges();
  second_->suspend();
  resume_ranges(ranges);
}

/// Runs the second pass until it yields or ends.
void PassInterleaver::run_second() {
  const std::vector<TimedRange*> ranges = pause_ranges();
  is_in_second_ = true;
  second_->resume();
  is_in_second_ = false;
  resume_ranges(ranges);
}

std::vector<TimedRange*> PassInterleaver::pause_ranges() const {
  return profiler_ ? profiler_->pause_ranges(outer_ranges_) : std::vector<TimedRange*>();
}

void PassInterleaver::resume_ranges(const std::vector<TimedRange*>& ranges) const {
  if (profiler_) profiler_->resume_ranges(ranges);
}

}  // namespace mcpp
