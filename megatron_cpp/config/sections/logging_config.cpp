#include "megatron_cpp/config/sections/logging_config.h"

#include "base/strings.h"

namespace mcpp {

std::vector<std::string> LoggingConfig::conflicts() const {
  std::vector<std::string> errors;
  if (profile_step_end > 0 && profile_step_start >= profile_step_end) {
    errors.push_back(str("logging.profile_step_start: ", profile_step_start, " must be below profile_step_end ",
                         profile_step_end, ", the last iteration of the trace"));
  }
  if (profile_step_end == 0 && profile_step_start > 0)
    errors.push_back("logging.profile_step_start: needs profile_step_end, the last iteration of the trace");
  if (straggler_factor > 0 && straggler_factor <= 1)
    errors.push_back(str("logging.straggler_factor: ", straggler_factor, " must be above 1, or 0 for none"));
  if (tensorboard_histogram_interval > 0 && tensorboard_dir.empty())
    errors.push_back("logging.tensorboard_histogram_interval: needs tensorboard_dir");
  return errors;
}

}  // namespace mcpp
