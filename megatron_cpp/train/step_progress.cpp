#include "megatron_cpp/train/step_progress.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace mcpp {

LongStep::Reports LongStep::reports_at(double seconds, double share, i64 microbatches) {
  Reports reports;
  if (share <= 0) return reports;
  const i64 current = std::min(microbatches, 1 + static_cast<i64>(share * static_cast<double>(microbatches)));
  const std::string position = str("microbatch ", current, " of ", microbatches),
                    left = human_seconds(seconds * (1 - share) / share) + " left";
  if (seconds - last_live_ >= kLivePause) {
    reports.live = str(position, ", ", left);
    last_live_ = seconds;
  }
  if (seconds - last_log_ >= kLogPause) {
    reports.log = str(position, " after ", human_seconds(seconds), ", ", left);
    last_log_ = seconds;
  }
  return reports;
}

void StepProgress::begin(std::string name) {
  name_ = std::move(name);
  start_ = std::chrono::steady_clock::now();
  step_ = {};
}

void StepProgress::on_pass_finished(i64 done, i64 all, i64 microbatches) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const LongStep::Reports reports =
      step_.reports_at(seconds, static_cast<double>(done) / static_cast<double>(all), microbatches);
  if (reports.log) log_.info(str(name_, ": ", *reports.log));
  if (reports.live && is_live_) log_.progress(str(name_, ": ", *reports.live));
}

}  // namespace mcpp
