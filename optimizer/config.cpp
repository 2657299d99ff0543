#include "optimizer/config.h"

#include <algorithm>

#include "base/glob.h"
#include "base/strings.h"

namespace mcpp {

bool ParamGroupConfig::matches(std::string_view name) const {
  return std::ranges::any_of(match.values(), [&](const std::string& pattern) { return matches_glob(name, pattern); });
}

const ParamGroupConfig* OptimizerConfig::find_param_group(std::string_view name) const {
  const auto it = std::ranges::find_if(param_group, [&](const ParamGroupConfig& group) { return group.matches(name); });
  return it == param_group.end() ? nullptr : &*it;
}

/// Reports the keys that the selected optimizer ignores.
void OptimizerConfig::add_ignored_keys(std::vector<std::string>& errors) const {
  const OptimizerConfig defaults;
  const bool sets_adam =
      adam_beta1 != defaults.adam_beta1 || adam_beta2 != defaults.adam_beta2 || adam_eps != defaults.adam_eps;
  const bool sets_muon =
      muon_momentum != defaults.muon_momentum || muon_nesterov != defaults.muon_nesterov ||
      muon_split_qkv != defaults.muon_split_qkv || muon_split_heads != defaults.muon_split_heads ||
      muon_coefficient_type != defaults.muon_coefficient_type || muon_num_ns_steps != defaults.muon_num_ns_steps ||
      muon_scale_mode != defaults.muon_scale_mode || muon_extra_scale_factor != defaults.muon_extra_scale_factor;
  const bool sets_clip = qk_clip_threshold != defaults.qk_clip_threshold || qk_clip_alpha != defaults.qk_clip_alpha;
  if (!qk_clip && sets_clip)
    errors.push_back("optimizer.qk_clip_threshold, qk_clip_alpha: only read when qk_clip is true");
  const bool sets_ema = ema_start != defaults.ema_start || ema_interval != defaults.ema_interval;
  if (ema_decay == 0 && sets_ema) errors.push_back("optimizer.ema_start, ema_interval: only read with ema_decay");
  if (optimizer == OptimizerKind::Sgd && sets_adam) {
    errors.push_back("optimizer.adam_beta1, adam_beta2, adam_eps: only read when optimizer is \"adam\" or \"muon\"");
  }
  if (optimizer == OptimizerKind::Sgd && exp_avg_sq_dtype != defaults.exp_avg_sq_dtype) {
    errors.push_back("optimizer.exp_avg_sq_dtype: sgd has no second moments");
  }
  if (!can_round_gradients() && main_grads_dtype != defaults.main_grads_dtype) {
    errors.push_back("optimizer.main_grads_dtype: must be \"fp32\" with muon, which transforms gradients in place");
  }
  if (optimizer != OptimizerKind::Sgd && sgd_momentum != defaults.sgd_momentum) {
    errors.push_back("optimizer.sgd_momentum: only read when optimizer is \"sgd\"");
  }
  if (optimizer != OptimizerKind::Muon && sets_muon) {
    errors.push_back(
        "optimizer.muon_momentum, muon_nesterov, muon_split_qkv, muon_split_heads, muon_coefficient_type, "
        "muon_num_ns_steps, muon_scale_mode, muon_extra_scale_factor: only read when optimizer is \"muon\"");
  }
  if (muon_split_heads && !muon_split_qkv)
    errors.push_back("optimizer.muon_split_heads: needs muon_split_qkv, since heads are parts of q, k and v");
  if (muon_coefficient_type == MuonCoefficientType::DeepseekV4 && muon_num_ns_steps < kDeepseekSteps) {
    errors.push_back(str("optimizer.muon_num_ns_steps: \"deepseekv4\" has ", kDeepseekSteps,
                         " iterations, of which the last two converge; set at least ", kDeepseekSteps, ", not ",
                         muon_num_ns_steps));
  }
}

void OptimizerConfig::add_storage_conflicts(std::vector<std::string>& errors) const {
  if (stochastic_rounding && store_param_remainders)
    errors.push_back(
        "optimizer.store_param_remainders: stochastic_rounding stores no master weights; remove one of the two");
  if (stochastic_rounding && ema_decay > 0)
    errors.push_back(
        "optimizer.ema_decay: the average is exchanged with the weights for evaluations, which must not round it; "
        "remove ema_decay or stochastic_rounding");
}

void OptimizerConfig::add_offload_conflicts(std::vector<std::string>& errors) const {
  const OptimizerConfig defaults;
  const bool is_on_device = offload == OffloadTier::Device;
  if (is_on_device && offload_fraction != defaults.offload_fraction)
    errors.push_back("optimizer.offload_fraction: only read when offload is \"host\" or \"file\"");
  if (is_on_device && offload_segment_size != defaults.offload_segment_size)
    errors.push_back("optimizer.offload_segment_size: only read when offload is \"host\" or \"file\"");
}

void OptimizerConfig::add_param_group_conflicts(std::vector<std::string>& errors) const {
  for (std::size_t i = 0; i < param_group.size(); ++i) {
    const ParamGroupConfig& group = param_group[i];
    const auto add = [&](const auto&... text) {
      errors.push_back(str("optimizer.param_group: table ", i + 1, ": ", text...));
    };
    if (std::ranges::count(group.match.values(), "") > 0)
      add("match: is missing; set it to names of tensors such as \"embedding.*\"");
    if (optimizer == OptimizerKind::Sgd && group.sets_adam())
      add("adam_beta1, adam_beta2, adam_eps: only read when optimizer is \"adam\" or \"muon\"");
  }
}

std::vector<std::string> OptimizerConfig::conflicts() const {
  std::vector<std::string> errors;
  const auto at_most_one = [&](const char* names, int count) {
    if (count > 1) errors.push_back(str("optimizer: set only one of ", names));
  };
  at_most_one("lr_decay_iters, lr_decay_samples", (lr_decay_iters > 0) + (lr_decay_samples > 0));
  at_most_one("lr_warmup_fraction, lr_warmup_iters, lr_warmup_samples",
              (lr_warmup_fraction > 0) + (lr_warmup_iters > 0) + (lr_warmup_samples > 0));
  at_most_one("lr_wsd_decay_iters, lr_wsd_decay_samples", (lr_wsd_decay_iters > 0) + (lr_wsd_decay_samples > 0));
  if (min_loss_scale > initial_loss_scale) {
    errors.push_back(
        str("optimizer.min_loss_scale: ", min_loss_scale, " is above initial_loss_scale ", initial_loss_scale));
  }
  if (min_lr > lr) errors.push_back(str("optimizer.min_lr: ", min_lr, " is above lr ", lr));
  if (lr_warmup_init > lr) errors.push_back(str("optimizer.lr_warmup_init: ", lr_warmup_init, " is above lr ", lr));
  const bool has_wsd_length = lr_wsd_decay_iters > 0 || lr_wsd_decay_samples > 0;
  if (lr_decay_style == LrDecayStyle::Wsd && !has_wsd_length) {
    errors.push_back("optimizer.lr_wsd_decay_iters: must be set with lr_decay_style \"WSD\" (or lr_wsd_decay_samples)");
  }
  if (lr_decay_style != LrDecayStyle::Wsd && has_wsd_length) {
    errors.push_back("optimizer.lr_wsd_decay_iters: only read when lr_decay_style is \"WSD\"");
  }
  add_ignored_keys(errors);
  add_offload_conflicts(errors);
  add_storage_conflicts(errors);
  add_param_group_conflicts(errors);
  const bool has_ramp = start_weight_decay >= 0 || end_weight_decay >= 0;
  if (weight_decay_incr_style == WeightDecayIncrStyle::Constant && has_ramp) {
    errors.push_back(
        "optimizer.start_weight_decay, end_weight_decay: only read when weight_decay_incr_style is linear or cosine");
  }
  if (weight_decay_incr_style != WeightDecayIncrStyle::Constant &&
      (start_weight_decay < 0 || end_weight_decay < start_weight_decay)) {
    errors.push_back("optimizer.start_weight_decay, end_weight_decay: a ramp needs both, 0 <= start <= end");
  }
  return errors;
}

}  // namespace mcpp
