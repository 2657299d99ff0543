#include "megatron_cpp/monitor/metrics/log_window.h"

#include <cmath>

namespace mcpp {

void LogWindow::exclude_from_timing(const RankTimings& passed) {
  begin_ += passed;
  step_begin_ += passed;
}

void LogWindow::add(const IterationStats& step, const RankTimings& end) {
  const bool is_skipped = step.skipped_iterations > 0;
  iterations_ += 1;
  samples_ += step.global_batch_size;
  if (!is_skipped) {
    losses_ += 1;
    loss_sum_ += step.lm_loss;
  }
  last_ = step;
  if (is_skipped) last_.lm_loss = std::nan("");
  last_.elapsed_ms = 1000 * (end - step_begin_).clock;
  set_rates(last_, static_cast<double>(step.global_batch_size));
  if (work_.is_peak_measured && last_.tflops > work_.peak_tflops) {
    work_.peak_tflops = last_.tflops;
    set_rates(last_, static_cast<double>(step.global_batch_size));
  }
  const i64 skipped = means_.skipped_iterations, nan = means_.nan_iterations;
  means_ = step;
  means_.skipped_iterations += skipped;
  means_.nan_iterations += nan;
  end_ = step_begin_ = end;
  const auto iterations = static_cast<double>(iterations_);
  means_.elapsed_ms = 1000 * seconds().clock / iterations;
  set_rates(means_, static_cast<double>(samples_) / iterations);
}

void LogWindow::restart() {
  LogWindow next(work_);
  next.begin_ = next.end_ = end_;
  next.step_begin_ = step_begin_;
  *this = next;
}

void LogWindow::set_rates(IterationStats& stats, double samples) const {
  mcpp::set_rates(stats, samples * work_.tokens, samples * work_.flops, work_.peak_tflops, work_.devices);
}

}  // namespace mcpp
