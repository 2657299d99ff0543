// Progress display of tokenizer training.
#pragma once
#include <optional>

#include "base/program/progress.h"
#include "base/types.h"

namespace mcpp {

/// Shows how much text was read, then that the library is training, which does not report progress.
class TokenizerTrainingProgress {
 public:
  explicit TokenizerTrainingProgress(const Log& log) : log_(log) {}

  void reading(u64 done_bytes, u64 total_bytes) {
    if (!reading_)
      reading_.emplace(log_, "tokenizer: reading", ProgressOptions{.total = static_cast<double>(total_bytes)});
    reading_->update(static_cast<double>(done_bytes));
  }
  void training() {
    reading_.reset();
    if (!waiting_) waiting_.emplace(log_, "tokenizer: all is read, training");
  }

 private:
  const Log& log_;
  std::optional<Progress> reading_;
  std::optional<WaitIndicator> waiting_;
};

}  // namespace mcpp
