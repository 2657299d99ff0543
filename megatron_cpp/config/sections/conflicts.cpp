// Rules between the keys of one section.
#include <algorithm>

#include "base/strings.h"
#include "base/url.h"
#include "megatron_cpp/config/sections/fault_injection_config.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/config/sections/training_config.h"

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

void low_precision_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  if (!t.low_precision.empty() && t.precision != Precision::Bf16)
    errors.push_back("training.low_precision: needs training.precision \"bf16\", which all other operations use");
  for (std::size_t i = 0; i < t.low_precision.size(); ++i) {
    const LowPrecisionConfig& table = t.low_precision[i];
    const auto add = [&](const char* text) {
      errors.push_back(str("training.low_precision: table ", i + 1, ": ", text));
    };
    if (std::ranges::count(table.modules.values(), "") > 0)
      add("modules: is missing; set it to names of linear layers such as \"decoder.layers.*.mlp.*\"");
    const PassRecipes passes = table.passes();
    const auto is_fp8 = [](GemmRecipe recipe) { return recipe != GemmRecipe::Bf16 && recipe != GemmRecipe::Nvfp4; };
    if (!is_fp8(passes.dgrad) && !is_fp8(passes.wgrad) && table.gradients != Fp8Format::E4M3)
      add("gradients: only read when dgrad or wgrad has a recipe of fp8");
  }
}

void delayed_scaling_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  if (t.recipes().contains(GemmRecipe::Delayed)) return;
  const TrainingConfig defaults;
  const auto add = [&](bool is_set, const char* key) {
    if (is_set)
      errors.push_back(str("training.", key, ": only read when fp8_recipe or a table of low_precision is \"delayed\""));
  };
  add(t.fp8_amax_history_len != defaults.fp8_amax_history_len, "fp8_amax_history_len");
  add(t.fp8_amax_compute_algo != defaults.fp8_amax_compute_algo, "fp8_amax_compute_algo");
  add(t.fp8_margin != defaults.fp8_margin, "fp8_margin");
}

void dispatch_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  if (t.moe_fp8_dispatch && t.low_precision.empty())
    errors.push_back(
        "training.moe_fp8_dispatch: needs a table of training.low_precision that gives routed experts "
        "(\"*.experts.*\") the recipe \"blockwise\" or \"mxfp8\"; add it, or remove the key");
}

void fp8_conflicts(const TrainingConfig& t, std::vector<std::string>& errors) {
  if (t.fp8 == Fp8::None && t.fp8_recipe != Fp8RecipeName::Tensorwise)
    errors.push_back("training.fp8_recipe: only read when fp8 is \"e4m3\" or \"hybrid\"");
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

/// Appends conflicts of collectors and alerts.
void add_receiver_conflicts(const LoggingConfig& l, std::vector<std::string>& errors) {
  const auto check_url = [&](const std::string& url, const char* key, const char* also_allowed) {
    if (!url.empty() && !is_http_url(url))
      errors.push_back(
          str("logging.", key, ": \"", url, "\" must begin with http:// or https:// and name a host", also_allowed));
  };
  check_url(l.otlp_endpoint, "otlp_endpoint", "");
  if (!l.alert_webhook.starts_with('$')) check_url(l.alert_webhook, "alert_webhook", ", or be $NAME of a variable");
  for (const std::string& name : l.alert_events)
    if (std::ranges::find(kEventNames, name) == kEventNames.end())
      errors.push_back(str("logging.alert_events: \"", name, "\" must be one of ",
                           join(std::vector<std::string>(kEventNames.begin(), kEventNames.end()), ", ")));
  if (l.alert_events != LoggingConfig().alert_events && !l.has_alerts())
    errors.push_back("logging.alert_events: only read with alert_command or alert_webhook");
}

}  // namespace

static_assert(std::equal(EnumNames<PassRecipeName>::value.begin() + 1, EnumNames<PassRecipeName>::value.end(),
                         EnumNames<GemmRecipe>::value.begin(), EnumNames<GemmRecipe>::value.end()),
              "passes() converts by number");

PassRecipes LowPrecisionConfig::passes() const {
  const auto of_pass = [this](PassRecipeName pass) {
    return pass == PassRecipeName::Same ? recipe : static_cast<GemmRecipe>(static_cast<int>(pass) - 1);
  };
  return {.forward = recipe, .dgrad = of_pass(dgrad), .wgrad = of_pass(wgrad), .gradients = gradients};
}

std::set<GemmRecipe> TrainingConfig::recipes() const {
  std::set<GemmRecipe> all;
  if (fp8 != Fp8::None) all.insert(recipe_of(fp8_recipe));
  for (const LowPrecisionConfig& table : low_precision) {
    const PassRecipes passes = table.passes();
    all.insert({passes.forward, passes.dgrad, passes.wgrad});
  }
  all.erase(GemmRecipe::Bf16);
  return all;
}

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
  low_precision_conflicts(*this, errors);
  delayed_scaling_conflicts(*this, errors);
  dispatch_conflicts(*this, errors);
  return errors;
}

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
  add_receiver_conflicts(*this, errors);
  return errors;
}

std::vector<std::string> FaultInjectionConfig::conflicts() const {
  std::vector<std::string> errors;
  if (point != FaultPoint::Step && !ends_process(kind)) {
    errors.push_back("fault_injection.point: applies only to the kinds error, exit, kill and hang");
  }
  if (kind == FaultKind::Spike && rank != -1) {
    errors.push_back("fault_injection.rank: a spike affects the entire batch; remove it");
  }
  return errors;
}

}  // namespace mcpp
