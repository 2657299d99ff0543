// Optimizer configuration: update rule, learning rate, weight decay. Keys have the names of Megatron-LM.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/io/offload_tier.h"
#include "parallel/layout.h"

namespace mcpp {

enum class OptimizerKind { Adam, Sgd, Muon };
/// Storage formats of the optimizer's moments.
enum class StateDType { Fp32, Bf16, Uint8, Fp8E4m3, Fp8E5m2 };
/// Coefficients of the Newton-Schulz iterations, named as in NVIDIA's Emerging-Optimizers.
enum class MuonCoefficientType { Simple, Quintic, PolarExpress, Cans, Aol, DeepseekV4 };
/// Iterations of MuonCoefficientType::DeepseekV4.
inline constexpr i64 kDeepseekSteps = 10;
enum class MuonScaleMode { Spectral, UnitRmsNorm, ShapeScaling };
enum class LrDecayStyle { Constant, Linear, Cosine, InverseSquareRoot, Wsd };
enum class WsdDecayStyle { Exponential, Linear, Cosine, MinusSqrt };
enum class WeightDecayIncrStyle { Constant, Linear, Cosine };

template <>
struct EnumNames<OptimizerKind> {
  static constexpr std::array<std::string_view, 3> value{"adam", "sgd", "muon"};
};
template <>
struct EnumNames<StateDType> {
  static constexpr std::array<std::string_view, 5> value{"fp32", "bf16", "uint8", "fp8_e4m3", "fp8_e5m2"};
};
template <>
struct EnumNames<MuonCoefficientType> {
  static constexpr std::array<std::string_view, 6> value{"simple", "quintic", "polar_express",
                                                         "cans",   "aol",     "deepseekv4"};
};
template <>
struct EnumNames<MuonScaleMode> {
  static constexpr std::array<std::string_view, 3> value{"spectral", "unit_rms_norm", "shape_scaling"};
};
template <>
struct EnumNames<LrDecayStyle> {
  static constexpr std::array<std::string_view, 5> value{"constant", "linear", "cosine", "inverse-square-root", "WSD"};
};
template <>
struct EnumNames<WsdDecayStyle> {
  static constexpr std::array<std::string_view, 4> value{"exponential", "linear", "cosine", "minus_sqrt"};
};
template <>
struct EnumNames<WeightDecayIncrStyle> {
  static constexpr std::array<std::string_view, 3> value{"constant", "linear", "cosine"};
};

/// Settings of the parameters whose names match (optimizer.param_group).
struct ParamGroupConfig {
  OneOrList<std::string> match;
  double lr_mult = 1;
  std::optional<double> wd_mult = {};
  std::optional<double> adam_beta1 = {};
  std::optional<double> adam_beta2 = {};
  std::optional<double> adam_eps = {};

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("match", self.match, "names of tensors in checkpoints; * stands for any characters, ? for one");
    visit("lr_mult", self.lr_mult, "factor of the learning rate; 0 = the weights do not change", at_least(0));
    visit("wd_mult", self.wd_mult,
          "factor of the weight decay; unset = 0 for biases and one-dimensional parameters, else 1", at_least(0));
    visit("adam_beta1", self.adam_beta1, "decay rate of the first moment; unset = optimizer.adam_beta1",
          between_excluding_max(0, 1));
    visit("adam_beta2", self.adam_beta2, "decay rate of the second moment; unset = optimizer.adam_beta2",
          between_excluding_max(0, 1));
    visit("adam_eps", self.adam_eps, "term added to the square root of the second moment; unset = optimizer.adam_eps",
          greater_than(0));
  }

  /// Returns true if a pattern matches the name.
  bool matches(std::string_view name) const;
  bool sets_adam() const { return adam_beta1 || adam_beta2 || adam_eps; }
  bool operator==(const ParamGroupConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::Adam;
  double lr = 3e-4;
  double min_lr = 0;
  LrDecayStyle lr_decay_style = LrDecayStyle::Linear;
  i64 lr_decay_iters = 0;
  i64 lr_decay_samples = 0;
  double lr_warmup_fraction = 0;
  i64 lr_warmup_iters = 0;
  i64 lr_warmup_samples = 0;
  double lr_warmup_init = 0;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::Exponential;
  i64 lr_wsd_decay_iters = 0;
  i64 lr_wsd_decay_samples = 0;
  double weight_decay = 0.01;
  double start_weight_decay = -1;
  double end_weight_decay = -1;
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::Constant;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  bool muon_split_qkv = true;
  bool muon_split_heads = false;
  MuonCoefficientType muon_coefficient_type = MuonCoefficientType::Simple;
  i64 muon_num_ns_steps = 5;
  MuonScaleMode muon_scale_mode = MuonScaleMode::Spectral;
  double muon_extra_scale_factor = 0.2;
  std::vector<ParamGroupConfig> param_group = {};
  bool qk_clip = false;
  double qk_clip_threshold = 100;
  double qk_clip_alpha = 0.5;
  double ema_decay = 0;
  i64 ema_start = 0;
  i64 ema_interval = 1;
  double clip_grad = 1.0;
  double loss_scale = 0;
  double initial_loss_scale = 4294967296;
  double min_loss_scale = 1;
  i64 loss_scale_window = 1000;
  i64 hysteresis = 2;
  StateDType exp_avg_dtype = StateDType::Fp32;
  StateDType exp_avg_sq_dtype = StateDType::Fp32;
  bool store_param_remainders = false;
  bool stochastic_rounding = false;
  GradDType main_grads_dtype = GradDType::Fp32;
  OffloadTier offload = OffloadTier::Device;
  double offload_fraction = 1;
  std::string offload_folder;
  i64 offload_segment_size = i64{4} << 20;
  OffloadTier offload_params = OffloadTier::Device;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("optimizer", self.optimizer,
          "adam is AdamW (decoupled weight decay); muon uses Muon for the matrices of linear layers and adam for the "
          "rest");
    schedule_fields(self, visit);
    rule_fields(self, visit);
    qk_clip_fields(self, visit);
    ema_fields(self, visit);
    gradient_fields(self, visit);
    storage_fields(self, visit);
  }

  /// Returns true if the optimizer accepts gradients of lower precision than fp32 (main_grads_dtype).
  bool can_round_gradients() const { return optimizer != OptimizerKind::Muon; }

  /// Returns the first group that matches the name of a parameter, or null.
  const ParamGroupConfig* find_param_group(std::string_view name) const;

  /// Returns every violated rule between fields, as "optimizer.key: problem and allowed values".
  std::vector<std::string> conflicts() const;

 private:
  template <class Self, class Visitor>
  static void schedule_fields(Self& self, Visitor& visit) {
    visit("lr", self.lr, "maximum learning rate", greater_than(0));
    visit("min_lr", self.min_lr, "learning rate at the end of the decay", at_least(0));
    visit("lr_decay_style", self.lr_decay_style, "shape of the decay");
    visit("lr_decay_iters", self.lr_decay_iters, "length of the decay in iterations; 0 = the entire training",
          at_least(0));
    visit("lr_decay_samples", self.lr_decay_samples, "length of the decay in samples; excludes lr_decay_iters",
          at_least(0));
    visit("lr_warmup_fraction", self.lr_warmup_fraction, "fraction of the decay that warms up linearly",
          between_excluding_max(0, 1));
    visit("lr_warmup_iters", self.lr_warmup_iters, "length of the warm-up in iterations", at_least(0));
    visit("lr_warmup_samples", self.lr_warmup_samples, "length of the warm-up in samples", at_least(0));
    visit("lr_warmup_init", self.lr_warmup_init, "learning rate at the start of the warm-up", at_least(0));
    visit("lr_wsd_decay_style", self.lr_wsd_decay_style, "shape of the final decay of WSD");
    visit("lr_wsd_decay_iters", self.lr_wsd_decay_iters, "length of the final decay of WSD in iterations", at_least(0));
    visit("lr_wsd_decay_samples", self.lr_wsd_decay_samples, "length of the final decay of WSD in samples",
          at_least(0));
    visit("weight_decay", self.weight_decay, "weight decay; not applied to biases and one-dimensional parameters",
          at_least(0));
    visit("start_weight_decay", self.start_weight_decay, "weight decay at the start of its ramp; -1 = weight_decay",
          at_least(-1));
    visit("end_weight_decay", self.end_weight_decay, "weight decay at the end of its ramp; -1 = weight_decay",
          at_least(-1));
    visit("weight_decay_incr_style", self.weight_decay_incr_style, "shape of the ramp");
  }

  template <class Self, class Visitor>
  static void rule_fields(Self& self, Visitor& visit) {
    visit("adam_beta1", self.adam_beta1, "decay rate of the first moment", between_excluding_max(0, 1));
    visit("adam_beta2", self.adam_beta2, "decay rate of the second moment", between_excluding_max(0, 1));
    visit("adam_eps", self.adam_eps, "term added to the square root of the second moment", greater_than(0));
    visit("sgd_momentum", self.sgd_momentum, "momentum of sgd", between_excluding_max(0, 1));
    visit("muon_momentum", self.muon_momentum, "momentum of muon", between_excluding_max(0, 1));
    visit("muon_nesterov", self.muon_nesterov, "use Nesterov momentum");
    visit("muon_split_qkv", self.muon_split_qkv,
          "orthogonalize the queries, keys and values of a fused weight separately");
    visit("muon_split_heads", self.muon_split_heads,
          "orthogonalize the queries, keys and values of each attention head separately");
    visit("muon_coefficient_type", self.muon_coefficient_type,
          "coefficients of the Newton-Schulz iterations: simple = Jordan's in each iteration; the others differ by "
          "iteration and bring the singular values closer to 1");
    visit("muon_num_ns_steps", self.muon_num_ns_steps, "Newton-Schulz iterations for the orthogonalization",
          between(1, 100));
    visit("muon_scale_mode", self.muon_scale_mode,
          "scale of an update of [out, in]: spectral = sqrt(max(out, in)), unit_rms_norm = sqrt(out / in), "
          "shape_scaling = sqrt(max(1, out / in))");
    visit("muon_extra_scale_factor", self.muon_extra_scale_factor,
          "additional factor of the update; spectral with 0.2 matches the size of AdamW's updates, for its learning "
          "rates and decay",
          greater_than(0));
    visit("param_group", self.param_group,
          "parameters with their own settings, as [[optimizer.param_group]] tables with the keys match, lr_mult, "
          "wd_mult, adam_beta1, adam_beta2 and adam_eps; a parameter takes the first table that matches its name");
  }

  template <class Self, class Visitor>
  static void qk_clip_fields(Self& self, Visitor& visit) {
    visit("qk_clip", self.qk_clip,
          "after each update, scale the query and key weights of attention heads whose largest logit in the step was "
          "above qk_clip_threshold (MuonClip)");
    visit("qk_clip_threshold", self.qk_clip_threshold, "largest attention logit that qk_clip allows", greater_than(0));
    visit("qk_clip_alpha", self.qk_clip_alpha,
          "qk_clip scales queries by ratio^alpha and keys by ratio^(1 - alpha), where ratio = threshold / logit",
          between(0, 1));
  }

  template <class Self, class Visitor>
  static void ema_fields(Self& self, Visitor& visit) {
    visit("ema_decay", self.ema_decay,
          "keep an exponential moving average (EMA) of the weights, of which an update keeps this fraction; 0 = none",
          between_excluding_max(0, 1));
    visit("ema_start", self.ema_start,
          "updates of the weights before the average begins; until then it equals the weights", at_least(0));
    visit("ema_interval", self.ema_interval, "updates of the weights between two updates of the average", at_least(1));
  }

  template <class Self, class Visitor>
  static void gradient_fields(Self& self, Visitor& visit) {
    visit("clip_grad", self.clip_grad, "maximum global norm of the gradient; 0 = no clipping", at_least(0));
    visit("loss_scale", self.loss_scale,
          "factor of the loss in the backward pass, divided out before the update; 0 = dynamic with fp16, else none",
          at_least(0));
    visit("initial_loss_scale", self.initial_loss_scale, "initial dynamic loss scale, with fp16", greater_than(0));
    visit("min_loss_scale", self.min_loss_scale, "minimum of the dynamic loss scale", greater_than(0));
    visit("loss_scale_window", self.loss_scale_window, "steps without overflow after which the loss scale doubles",
          at_least(1));
    visit("hysteresis", self.hysteresis,
          "halve the loss scale at the N-th overflow since it last doubled, and at each later one", at_least(1));
  }

  template <class Self, class Visitor>
  static void storage_fields(Self& self, Visitor& visit) {
    visit(
        "exp_avg_dtype", self.exp_avg_dtype,
        "storage type of first moments (and momentum); uint8, fp8_e4m3, fp8_e5m2 = one byte each, with a scale per 64");
    visit("exp_avg_sq_dtype", self.exp_avg_sq_dtype, "storage type of second moments");
    visit("store_param_remainders", self.store_param_remainders,
          "with training.precision bf16: store only those bits of master weights that the bf16 weights lack, 17 "
          "instead of 32; bitwise identical");
    visit("stochastic_rounding", self.stochastic_rounding,
          "with training.precision bf16: store no master weights; updates round weights up or down at random, so that "
          "they are exact on average, identically on every layout");
    visit("main_grads_dtype", self.main_grads_dtype,
          "type in which ranks store and send summed gradients, with parallel.zero_stage 2 and 3");
    visit("offload", self.offload,
          "where optimizer states and master weights are kept: with the weights, in host memory, or on a disk; bitwise "
          "identical");
    visit("offload_fraction", self.offload_fraction,
          "fraction of optimizer states that is offloaded; the rest stays on the device",
          Constraint{.min = 0, .max = 1, .min_is_excluded = true});
    visit("offload_folder", self.offload_folder,
          "folder on a fast local disk for data that offload, offload_params or training.offload_activations keep in "
          "files; no files are left there");
    visit("offload_segment_size", self.offload_segment_size, "elements that are transferred together",
          between(256, i64{1} << 30));
    visit("offload_params", self.offload_params,
          "with parallel.zero_stage 3: storage of each rank's shard of the weights, from which units are gathered one "
          "ahead; bitwise identical");
  }

  void add_ignored_keys(std::vector<std::string>& errors) const;
  void add_offload_conflicts(std::vector<std::string>& errors) const;
  void add_storage_conflicts(std::vector<std::string>& errors) const;
  void add_param_group_conflicts(std::vector<std::string>& errors) const;
};

}  // namespace mcpp
