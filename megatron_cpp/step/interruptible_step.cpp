#include "megatron_cpp/step/interruptible_step.h"

#include <algorithm>

#include "parallel/reduce_scalar.h"

namespace mcpp {

void InterruptibleStep::begin(i64 passes, i64 microbatches) {
  passes_ = passes;
  microbatches_ = microbatches;
  done_ = 0;
  is_aborted_ = false;
}

bool InterruptibleStep::should_continue() {
  if (!observer_ || is_aborted_) return !is_aborted_;
  observer_->on_pass_finished(done_++, passes_, microbatches_);
  agreed_signal_ =
      static_cast<int>(reduce_scalar(std::max(agreed_signal_, observer_->signal()), ReduceOp::Max, layer_, host_));
  is_aborted_ = agreed_signal_ != 0;
  return !is_aborted_;
}

StopRequest InterruptibleStep::stop_request() const {
  if (!observer_) return {.signal = agreed_signal_};
  return {.signal = std::max(agreed_signal_, observer_->signal()), .minutes = observer_->minutes()};
}

}  // namespace mcpp
