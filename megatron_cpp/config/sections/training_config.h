// Configuration of the duration, batch sizes, precision and policies of a run. Keys have the names of Megatron-LM where
// it has the same key.
#pragma once
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/io/offload_tier.h"
#include "parallel/layout.h"
#include "parallel/tp/delayed_scaling.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/recipe.h"

namespace mcpp {

enum class Precision { Fp32, Bf16, Fp16 };
enum class Fp8 { None, E4m3, Hybrid };
enum class Fp8RecipeName { Tensorwise, Delayed, Blockwise, Mxfp8 };
/// Recipe of one pass in a table of low_precision; Same: the table's recipe.
enum class PassRecipeName { Same, Bf16, Tensorwise, Delayed, Blockwise, Mxfp8, Nvfp4 };
enum class RecomputeMethod { Uniform, Block, Sqrt };
enum class NanPolicy { Skip, Stop, Rollback };
enum class SpikePolicy { Off, Warn, Skip, Rollback };
enum class StragglerPolicy { Warn, Stop };

template <>
struct EnumNames<Precision> {
  static constexpr std::array<std::string_view, 3> value{"fp32", "bf16", "fp16"};
};
template <>
struct EnumNames<Fp8> {
  static constexpr std::array<std::string_view, 3> value{"none", "e4m3", "hybrid"};
};
template <>
struct EnumNames<Fp8RecipeName> {
  static constexpr std::array<std::string_view, 4> value{"tensorwise", "delayed", "blockwise", "mxfp8"};
};
template <>
struct EnumNames<PassRecipeName> {
  static constexpr std::array<std::string_view, 7> value{"same",      "bf16",  "tensorwise", "delayed",
                                                         "blockwise", "mxfp8", "nvfp4"};
};
template <>
struct EnumNames<RecomputeMethod> {
  static constexpr std::array<std::string_view, 3> value{"uniform", "block", "sqrt"};
};
template <>
struct EnumNames<NanPolicy> {
  static constexpr std::array<std::string_view, 3> value{"skip", "stop", "rollback"};
};
template <>
struct EnumNames<SpikePolicy> {
  static constexpr std::array<std::string_view, 4> value{"off", "warn", "skip", "rollback"};
};

template <>
struct EnumNames<StragglerPolicy> {
  static constexpr std::array<std::string_view, 2> value{"warn", "stop"};
};

constexpr DType dtype_of(Precision precision) {
  return precision == Precision::Fp32 ? DType::F32 : precision == Precision::Bf16 ? DType::BF16 : DType::F16;
}
constexpr GemmRecipe recipe_of(Fp8RecipeName name) {
  return name == Fp8RecipeName::Tensorwise  ? GemmRecipe::Tensorwise
         : name == Fp8RecipeName::Delayed   ? GemmRecipe::Delayed
         : name == Fp8RecipeName::Blockwise ? GemmRecipe::Blockwise
                                            : GemmRecipe::Mxfp8;
}
/// Returns the precision whose weights have this type.
constexpr Precision precision_of(DType type) {
  return type == DType::BF16 ? Precision::Bf16 : type == DType::F16 ? Precision::Fp16 : Precision::Fp32;
}

/// Allowed values of recompute_modules: parts of a layer whose activations are cheap to recompute.
inline constexpr std::array<std::string_view, 4> kRecomputeModules{"core_attn", "layernorm", "mlp_act", "moe_act"};

/// Precision of the linear layers whose names match (training.low_precision).
struct LowPrecisionConfig {
  OneOrList<std::string> modules;
  GemmRecipe recipe = GemmRecipe::Bf16;
  PassRecipeName dgrad = PassRecipeName::Same;
  PassRecipeName wgrad = PassRecipeName::Same;
  Fp8Format gradients = Fp8Format::E4M3;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("modules", self.modules,
          "names of linear layers, such as \"decoder.layers.*.mlp.*\"; * stands for any characters, ? for one");
    visit("recipe", self.recipe, "rounding of the operands of GEMMs; bf16: none");
    visit("dgrad", self.dgrad, "recipe of the gradients of inputs; same: recipe");
    visit("wgrad", self.wgrad, "recipe of the gradients of weights; same: recipe");
    visit("gradients", self.gradients, "format of the gradients of outputs in fp8");
  }

  /// Returns the recipes of the three passes.
  PassRecipes passes() const;
  bool operator==(const LowPrecisionConfig&) const = default;
};

struct TrainingConfig {
  i64 seed = 1234;
  i64 micro_batch_size = 1;
  i64 global_batch_size = 0;
  std::vector<std::string> step_batch_size_schedule;
  i64 train_iters = 0;
  i64 train_samples = 0;
  Precision precision = Precision::Fp32;
  Fp8 fp8 = Fp8::None;
  Fp8RecipeName fp8_recipe = Fp8RecipeName::Tensorwise;
  i64 fp8_amax_history_len = 1024;
  AmaxComputeAlgo fp8_amax_compute_algo = AmaxComputeAlgo::Max;
  i64 fp8_margin = 0;
  bool first_last_layers_bf16 = false;
  i64 num_layers_at_start_in_bf16 = 1;
  i64 num_layers_at_end_in_bf16 = 1;
  std::vector<LowPrecisionConfig> low_precision = {};
  bool moe_fp8_dispatch = false;
  RecomputeGranularity recompute_granularity = RecomputeGranularity::None;
  RecomputeMethod recompute_method = RecomputeMethod::Uniform;
  i64 recompute_num_layers = 0;
  std::vector<std::string> recompute_modules;
  bool distribute_saved_activations = false;
  OffloadTier offload_activations = OffloadTier::Device;
  i64 eval_interval = 1000;
  i64 eval_iters = 100;
  std::vector<std::string> eval_tasks;
  bool eval_on_start = false;
  bool eval_ema = false;
  NanPolicy nan_policy = NanPolicy::Skip;
  SpikePolicy spike_policy = SpikePolicy::Warn;
  i64 spike_window = 128;
  double spike_z_score = 6;
  bool attribute_spikes = true;
  bool rerun_spikes = false;
  i64 rerun_interval = 0;
  i64 max_consecutive_skips = 10;
  i64 max_rollbacks = 3;
  StragglerPolicy straggler_policy = StragglerPolicy::Warn;
  std::vector<i64> iterations_to_skip;
  i64 check_weight_hash_across_dp_replicas_interval = 0;
  i64 exit_interval = 0;
  double exit_duration_in_mins = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("seed", self.seed, "seed of initial weights, dropout and the order of samples", between(0, 4294967295));
    visit("micro_batch_size", self.micro_batch_size, "samples in one forward and backward pass", between(1, 1e6));
    visit("global_batch_size", self.global_batch_size,
          "samples in one optimizer step; 0 = micro_batch_size, or as in step_batch_size_schedule", between(0, 1e6));
    visit(
        "step_batch_size_schedule", self.step_batch_size_schedule,
        "growing global batch size, \"0:768 250B:1536\": entries AT:SIZE, where AT is the number of samples (or, with "
        "K, M, B or T, of tokens) after which the size applies");
    visit("train_iters", self.train_iters, "iterations to train; set this or train_samples", between(0, 1e12));
    visit("train_samples", self.train_samples, "samples to train on, instead of train_iters", between(0, 1e15));
    precision_fields(self, visit);
    memory_fields(self, visit);
    visit("eval_interval", self.eval_interval, "iterations between two evaluations; 0 = only at the end", at_least(0));
    visit("eval_iters", self.eval_iters, "global batches in one evaluation; 0 = no evaluation", between(0, 1e12));
    visit("eval_tasks", self.eval_tasks,
          "likelihood tasks scored at each evaluation: JSONL files or glob patterns, as for `evaluate --tasks`");
    visit("eval_on_start", self.eval_on_start, "also evaluate before the first iteration");
    visit("eval_ema", self.eval_ema, "each evaluation also evaluates the averaged weights (optimizer.ema_decay)");
    policy_fields(self, visit);
    visit("exit_interval", self.exit_interval, "save and stop at multiples of this iteration; 0 = never", at_least(0));
    visit("exit_duration_in_mins", self.exit_duration_in_mins,
          "save and stop after the process has run for this many minutes; 0 = never", at_least(0));
  }

  /// Returns true if any linear layer may compute in low precision.
  bool has_low_precision() const { return fp8 != Fp8::None || !low_precision.empty(); }
  /// Returns the recipes of fp8 and of the tables of low_precision, except bf16.
  std::set<GemmRecipe> recipes() const;
  /// Returns every violated rule between fields, as "training.key: problem and allowed values".
  std::vector<std::string> conflicts() const;

 private:
  template <class Self, class Visitor>
  static void precision_fields(Self& self, Visitor& visit) {
    visit("precision", self.precision, "type of activations, and of the weights used for computation");
    visit(
        "fp8", self.fp8,
        "with bf16: GEMMs of linear layers in fp8. e4m3: all operands in E4M3; hybrid: output gradients in "
        "E5M2. A GPU needs compute capability 8.9 unless the recipe has blocks; a CPU emulates fp8, slower than bf16");
    visit("fp8_recipe", self.fp8_recipe,
          "elements that share a scale, which is derived from their largest absolute value; tensorwise: a tensor; "
          "delayed: a tensor, with the largest values of past steps; blockwise: 128 elements of activations and "
          "gradients along the contraction, and 128 x 128 of weights; mxfp8: 32 elements along the contraction");
    visit("fp8_amax_history_len", self.fp8_amax_history_len,
          "with the recipe delayed: number of past steps whose largest absolute values are kept", between(1, 4096));
    visit("fp8_amax_compute_algo", self.fp8_amax_compute_algo,
          "with the recipe delayed: value that determines the scale, the maximum of the past steps or the most recent");
    visit("fp8_margin", self.fp8_margin,
          "with the recipe delayed: the scale is divided by 2^fp8_margin, for values that grow", between(0, 32));
    visit("first_last_layers_bf16", self.first_last_layers_bf16, "with fp8: keep the first and last layers in bf16");
    visit("num_layers_at_start_in_bf16", self.num_layers_at_start_in_bf16,
          "with first_last_layers_bf16: number of first layers in bf16", at_least(0));
    visit("num_layers_at_end_in_bf16", self.num_layers_at_end_in_bf16,
          "with first_last_layers_bf16: number of last layers in bf16", at_least(0));
    visit("low_precision", self.low_precision,
          "linear layers with their own recipe, as [[training.low_precision]] tables with the keys modules, recipe, "
          "dgrad, wgrad and gradients; a layer takes the first table that matches its name");
    visit("moe_fp8_dispatch", self.moe_fp8_dispatch,
          "send tokens, and gradients of the outputs of routed experts, to the experts in fp8; weight gradients of "
          "experts are then computed from these values. Needs a table of low_precision that gives \"*.experts.*\" the "
          "recipe blockwise or mxfp8");
  }

  template <class Self, class Visitor>
  static void memory_fields(Self& self, Visitor& visit) {
    visit("recompute_granularity", self.recompute_granularity,
          "recompute activations in the backward pass to save memory: of entire layers (full), or of parts of each "
          "layer (selective)");
    visit("recompute_method", self.recompute_method,
          "for full: uniform keeps one input per group of recompute_num_layers; sqrt makes the number of groups equal "
          "to their size; block recomputes the first recompute_num_layers layers of each stage one by one");
    visit("recompute_num_layers", self.recompute_num_layers, "for full: number of layers, see recompute_method; 0 = 1",
          at_least(0));
    visit("recompute_modules", self.recompute_modules,
          "for selective: any of core_attn, layernorm, mlp_act, moe_act; empty = core_attn");
    visit("distribute_saved_activations", self.distribute_saved_activations,
          "for full: shard the saved inputs across tensor-parallel ranks and gather them in the backward pass; not "
          "needed with parallel.sequence_parallel, which shards them already");
    visit("offload_activations", self.offload_activations,
          "storage of activations saved for the backward pass: the device, host memory, or a disk "
          "(optimizer.offload_folder); bitwise identical");
  }

  template <class Self, class Visitor>
  static void policy_fields(Self& self, Visitor& visit) {
    visit("nan_policy", self.nan_policy,
          "action if loss or gradient is not finite, which never changes the weights: skip the step; stop with exit "
          "code 17; or rollback to the newest good checkpoint and skip the samples read since");
    visit("spike_policy", self.spike_policy,
          "action if loss or gradient norm is an outlier: warn (apply the step and log a warning), or skip, stop or "
          "rollback as for nan_policy");
    visit("spike_window", self.spike_window,
          "number of previous steps that define the mean and the standard deviation of loss and gradient norm",
          at_least(2));
    visit("spike_z_score", self.spike_z_score, "threshold of a spike: number of standard deviations above the mean",
          greater_than(0));
    visit("attribute_spikes", self.attribute_spikes,
          "log the layers whose gradient norm rose most at a spike, or at a loss or gradient that is not finite, and "
          "the text of the batch");
    visit("rerun_spikes", self.rerun_spikes,
          "repeat a step that is not applied because of a spike, or because its loss or gradient is not finite, and "
          "compare the results bitwise, to distinguish faults of the hardware from bad data");
    visit("rerun_interval", self.rerun_interval,
          "iterations between steps that are computed twice and compared bitwise on each rank; a difference names the "
          "faulty rank; 1 = every step; 0 = never",
          at_least(0));
    visit("max_consecutive_skips", self.max_consecutive_skips,
          "maximum number of consecutive skipped steps; if exceeded, training stops with exit code 17", at_least(0));
    visit("max_rollbacks", self.max_rollbacks,
          "maximum number of rollbacks of a run; if exceeded, training stops with exit code 17", at_least(0));
    visit("straggler_policy", self.straggler_policy,
          "action after a warning that a rank computes slower than ranks with the same work "
          "(logging.straggler_factor); warn: continue; stop: save and exit with code 75, so that scripts/launch.sh "
          "continues on a spare host");
    visit("iterations_to_skip", self.iterations_to_skip,
          "iterations whose samples are read but not trained on, for example those before a loss spike", at_least(1));
    visit("check_weight_hash_across_dp_replicas_interval", self.check_weight_hash_across_dp_replicas_interval,
          "iterations between comparisons of the weights of data-parallel replicas, which detect silent data "
          "corruption and also precede every save; 0 = never",
          at_least(0));
  }
};

}  // namespace mcpp
