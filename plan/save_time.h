// What checkpoints cost.
#pragma once
#include <string>

#include "plan/cost/job.h"

namespace mcpp {

struct SaveTime {
  double bytes = 0;    ///< of all ranks: weights, master weights and the optimizer's states, each once
  double seconds = 0;  ///< to write them to the local disks of all; 0 = it is not known how fast these are
  double stops = 0;    ///< the part of it that the training waits for when the rest is written beside it: a copy
};
SaveTime save_time(const Job& job);
std::string save_text(const Job& job, const SaveTime& save);

}  // namespace mcpp
