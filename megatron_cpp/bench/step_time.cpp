#include "megatron_cpp/bench/step_time.h"

#include "base/number_format.h"
#include "megatron_cpp/bench/bench.h"
#include "model/flops.h"

namespace mcpp {
std::string step_time(const Config& config, int world_size, Device& device) {
  // Fractions of the rate of large matrix products that the README's measurements reach.
  constexpr double kGood = 0.8, kPoor = 0.4;
  const double peak = mfu_peak_flops(dtype_of(config.training.precision), config.device.allow_tf32, device);
  const double flops = flops_per_batch(config.model, config.batch_sizes().back().batch_size) / world_size;
  const double least = flops / peak;
  std::string text = "time, on this machine as it is now:\n";
  text += str("  matrix products       ", fixed(peak / 1e9, 1), " GFLOP/s measured", world_size > 1 ? " per rank" : "",
              "\n");
  text += str("  a step                at least ", human_step_seconds(least),
              "; models reach 40 to 80 % of that rate: ", human_step_seconds(least / kGood), " to ",
              human_step_seconds(least / kPoor),
              world_size > 1 ? ", and more with the pipeline's bubble and communication" : "", "\n");
  return text;
}

}  // namespace mcpp
