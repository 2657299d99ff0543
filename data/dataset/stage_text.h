// Text that the stages of a run read for training.
#pragma once
#include "data/config.h"

namespace mcpp {

/// Training text of one stage. Its samples continue each dataset where the earlier stages stopped reading it.
struct StageText {
  DataConfig data;
  i64 seq_length = 0;
  i64 samples = 0;
  bool repeat_data = false;  ///< begins each dataset again, so that text of earlier stages is repeated
};

}  // namespace mcpp
