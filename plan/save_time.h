// Predicted cost of a checkpoint.
#pragma once
#include <string>

#include "plan/cost/prediction_input.h"

namespace mcpp {

struct SaveTime {
  double bytes = 0;    ///< of all ranks: weights, master weights and optimizer states, each once
  double seconds = 0;  ///< to write them to the local disks of all ranks; 0 = disk speed unknown
  double stops = 0;    ///< time that training stops for an asynchronous save: a copy
};
SaveTime save_time(const PredictionInput& job);
std::string save_text(const PredictionInput& job, const SaveTime& save);

}  // namespace mcpp
