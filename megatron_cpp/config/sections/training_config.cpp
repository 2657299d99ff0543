#include "megatron_cpp/config/sections/training_config.h"

#include <algorithm>

#include "base/strings.h"

namespace mcpp {
namespace {

void recompute_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  const bool full = t.recompute_granularity == RecomputeGranularity::Full;
  const auto only_with = [&](bool is_ignored, const char* key, const char* granularity) {
    if (is_ignored) {
      errors.push_back(str("training.", key, ": only read when recompute_granularity is \"", granularity, "\""));
    }
  };
  only_with(!full && t.recompute_method != RecomputeMethod::Uniform, "recompute_method", "full");
  only_with(!full && t.recompute_num_layers != 0, "recompute_num_layers", "full");
  if (full && t.recompute_method == RecomputeMethod::Sqrt && t.recompute_num_layers != 0) {
    errors.push_back("training.recompute_num_layers: recompute_method sqrt chooses it; remove it");
  }
  only_with(!full && t.distribute_saved_activations, "distribute_saved_activations", "full");
  only_with(t.recompute_granularity != RecomputeGranularity::Selective && !t.recompute_modules.empty(),
            "recompute_modules", "selective");
  const std::vector<std::string> allowed(kRecomputeModules.begin(), kRecomputeModules.end());
  for (const std::string& name : t.recompute_modules) {
    if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) continue;
    errors.push_back(str("training.recompute_modules: \"", name, "\": must be one of ", join(allowed, ", ")));
  }
}

void fp8_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  if (t.fp8 != Fp8::None && t.precision != Precision::Bf16)
    errors.push_back("training.fp8: needs training.precision \"bf16\", which all other operations use");
  if (t.fp8 == Fp8::None && t.first_last_layers_bf16)
    errors.push_back("training.first_last_layers_bf16: only read when fp8 is \"e4m3\" or \"hybrid\"");
  const TrainingConfig defaults;
  const auto needs_bf16_ends = [&](bool is_set, const char* key) {
    if (is_set && !t.first_last_layers_bf16)
      errors.push_back(str("training.", key, ": only read with first_last_layers_bf16"));
  };
  needs_bf16_ends(t.num_layers_at_start_in_bf16 != defaults.num_layers_at_start_in_bf16, "num_layers_at_start_in_bf16");
  needs_bf16_ends(t.num_layers_at_end_in_bf16 != defaults.num_layers_at_end_in_bf16, "num_layers_at_end_in_bf16");
}

}  // namespace

std::vector<std::string> TrainingConfig::conflicts() const {
  std::vector<std::string> errors;
  if (train_iters == 0 && train_samples == 0) {
    errors.push_back("training.train_iters: is missing; set it or train_samples to a positive number");
  }
  if (train_iters > 0 && train_samples > 0) {
    errors.push_back("training.train_samples: set only one of train_iters and train_samples");
  }
  if (global_batch_size % micro_batch_size != 0) {
    errors.push_back(str("training.global_batch_size: ", global_batch_size, " is not divisible by micro_batch_size ",
                         micro_batch_size));
  }
  if (!step_batch_size_schedule.empty() && global_batch_size > 0) {
    errors.push_back("training.global_batch_size: the batch size comes from step_batch_size_schedule; remove one");
  }
  if (!step_batch_size_schedule.empty() && train_iters > 0) {
    errors.push_back("training.step_batch_size_schedule: needs train_samples instead of train_iters");
  }
  recompute_conflicts(*this, errors);
  fp8_conflicts(*this, errors);
  return errors;
}

}  // namespace mcpp
