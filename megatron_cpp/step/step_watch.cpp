#include "megatron_cpp/step/step_watch.h"

#include <algorithm>

#include "parallel/scalar.h"

namespace mcpp {

void StepUnderWay::begin(i64 passes, i64 microbatches) {
  passes_ = passes;
  microbatches_ = microbatches;
  done_ = 0;
  is_given_up_ = false;
}

bool StepUnderWay::goes_on() {
  if (!watch_ || is_given_up_) return !is_given_up_;
  watch_->passed(done_++, passes_, microbatches_);
  agreed_signal_ =
      static_cast<int>(reduce_scalar(std::max(agreed_signal_, watch_->signal()), ReduceOp::Max, layer_, host_));
  is_given_up_ = agreed_signal_ != 0;
  return !is_given_up_;
}

Notices StepUnderWay::notices() const {
  if (!watch_) return {.signal = agreed_signal_};
  return {.signal = std::max(agreed_signal_, watch_->signal()), .minutes = watch_->minutes()};
}

}  // namespace mcpp
