// Text that the stages of a run read for training.
#pragma once
#include <algorithm>

#include "data/config.h"

namespace mcpp {

/// Training text of one stage. Its samples continue each dataset where the earlier stages stopped reading it.
struct StageText {
  DataConfig data;
  i64 seq_length = 0;
  i64 samples = 0;
  bool repeat_data = false;  ///< restarts each dataset, which repeats text of earlier stages
};

/// Position in a text that the stages of a run read one after another.
class StagePosition {
 public:
  /// Begins a stage: at the furthest token that an earlier stage has reached or, if it repeats the data, at token 0.
  void begin_stage(bool repeats_data) { next_ = repeats_data ? 0 : furthest_; }
  void advance(i64 tokens) {
    next_ += tokens;
    furthest_ = std::max(furthest_, next_);
  }

  i64 next() const { return next_; }          ///< token that the current stage reads next
  i64 furthest() const { return furthest_; }  ///< token that follows those that any stage has read

 private:
  i64 next_ = 0, furthest_ = 0;
};

}  // namespace mcpp
