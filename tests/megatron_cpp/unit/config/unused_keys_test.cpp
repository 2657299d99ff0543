// Every key of the configuration, set to a legal value other than its default, is either rejected by name, because it
// has no effect with the rest of the configuration, or has an effect: one in the values derived from the configuration,
// or one at run time, listed in kRunTimeEffects.
#include "megatron_cpp/config/unused_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/run_summary.h"
#include "optimizer/lr_schedule.h"
#include "tests/support/errors.h"

namespace mcpp::unused_keys_test {
namespace {

using testing::HasSubstr;

constexpr const char* kBase = "[model]\nvocab_size = 1024\n[training]\ntrain_iters = 10\nglobal_batch_size = 4\n";
constexpr int kWorld = 2;

Config parse(const std::vector<std::string>& args) {
  return parse_config(kBase, "run.toml", args);
}

std::string error_of(const std::vector<std::string>& args) {
  return test::input_error([&] { check_layout(parse(args), kWorld); });
}

/// Keys whose effect is visible only during training, or that have none by design, and the place of the effect.
constexpr std::pair<std::string_view, std::string_view> kRunTimeEffects[]{
    // The model's function is checked by the golden tests of the layers.
    {"model.max_position_embeddings", "longest context of generate and evaluate"},
    {"model.position_embedding_type", "forward pass"},
    {"model.window_size", "forward pass"},
    {"model.normalization", "forward pass"},
    {"model.norm_epsilon", "forward pass"},
    {"model.norm_position", "forward pass"},
    {"model.apply_layernorm_1p", "initial weights and forward pass"},
    {"model.use_parallel_residual", "forward pass"},
    {"model.activation_func", "forward pass"},
    {"model.query_pre_attn_scalar", "forward pass"},
    {"model.attn_logit_softcapping", "forward pass"},
    {"model.final_logit_softcapping", "forward pass"},
    {"model.embedding_multiplier", "forward pass"},
    {"model.add_qkv_bias", "none while add_bias_linear is true, which adds the bias as well"},
    {"model.add_attention_output_bias", "as add_qkv_bias"},
    {"model.add_mlp_bias", "as add_qkv_bias"},
    {"model.init_method_std", "initial weights"},
    {"model.embedding_init_method_std", "initial weights"},
    {"model.depth_init", "initial weights"},
    {"model.output_z_loss_coeff", "gradient of the loss"},
    {"model.hidden_dropout", "forward pass"},
    {"model.attention_dropout", "forward pass"},
    {"training.seed", "initial weights, dropout and the order of samples"},
    {"training.eval_interval", "iterations with an evaluation; Megatron-LM users set it next to eval_iters = 0"},
    {"training.eval_iters", "length of an evaluation"},
    {"training.eval_on_start", "an evaluation before the first iteration"},
    {"logging.alert_command", "command that runs at events"},
    {"training.nan_policy", "what follows a loss that is not finite"},
    {"training.spike_policy", "what follows a spike"},
    {"training.straggler_policy", "what follows a straggler"},
    {"training.spike_window", "which step is a spike"},
    {"training.spike_z_score", "which step is a spike"},
    {"training.attribute_spikes", "warnings at a spike"},
    {"training.rerun_spikes", "steps that are repeated"},
    {"training.rerun_interval", "steps that are repeated"},
    {"training.max_consecutive_skips", "when skipping ends the run"},
    {"training.check_weight_hash_across_dp_replicas_interval", "iterations with a comparison"},
    {"training.iterations_to_skip", "which samples are trained on"},
    {"training.exit_interval", "when the run ends"},
    {"training.exit_duration_in_mins", "when the run ends"},
    {"parallel.sequence_parallel", "none with one tensor-parallel rank, as in Megatron-LM, whose users always set it"},
    {"parallel.tp_comm_overlap", "when tensor-parallel ranks communicate"},
    {"parallel.ddp_bucket_size", "which gradients are reduced together"},
    {"parallel.overlap_grad_reduce", "when gradients are reduced"},
    {"parallel.overlap_param_gather", "when weights are gathered"},
    {"parallel.overlap_moe_expert_parallel_comm", "when tokens are exchanged"},
    {"parallel.distributed_backend", "which library carries tensors; \"mpi\" states what a CPU does anyway"},
    {"parallel.distributed_timeout_minutes", "when a run counts as hanging"},
    {"parallel.step_timeout_minutes", "when a step counts as hanging"},
    {"optimizer.optimizer", "the update"},
    {"optimizer.adam_beta1", "the update"},
    {"optimizer.adam_beta2", "the update"},
    {"optimizer.adam_eps", "the update"},
    {"optimizer.clip_grad", "the update"},
    {"optimizer.ema_decay", "averaged weights"},
    {"optimizer.qk_clip", "the update"},
    {"optimizer.loss_scale", "gradients of the backward pass"},
    {"optimizer.exp_avg_dtype", "the update and the size of its states"},
    {"optimizer.exp_avg_sq_dtype", "the update and the size of its states"},
    {"data.data_path", "what is read"},
    {"data.train_data_path", "what is read"},
    {"data.data_args_path", "what is read"},
    {"data.per_split_data_args_path", "what is read"},
    {"data.split", "what is read"},
    {"data.multiple_validation_sets", "losses of an evaluation"},
    {"data.full_validation", "length of an evaluation"},
    {"data.mock_data", "what is read"},
    {"data.data_cache_path", "where sample indices are"},
    {"data.tokenizer_model", "vocabulary and <eod>"},
    {"data.prefetch_batches", "batches read ahead"},
    {"data.reset_position_ids", "forward pass"},
    {"data.reset_attention_mask", "forward pass"},
    {"data.eod_mask_loss", "the loss"},
    {"data.fim_rate", "training samples"},
    {"data.eod_token", "a fact about the dataset, which its configuration may state"},
    {"checkpoint.save", "checkpoints"},
    {"checkpoint.load", "initial state"},
    {"checkpoint.allow_changed_keys", "a permission, which a start need not use"},
    {"logging.log_interval", "lines of the log"},
    {"logging.show_progress", "the live line of a terminal"},
    {"logging.metrics_path", "metrics.jsonl"},
    {"logging.peak_tflops", "MFU"},
    {"logging.tensorboard_dir", "event files"},
    {"logging.profile_step_end", "a trace"},
    {"logging.timing_log_level", "lines of the log"},
    {"logging.straggler_factor", "warnings about slow ranks"},
    {"logging.log_params_norm", "lines of the log"},
    {"logging.log_num_zeros_in_grad", "lines of the log"},
    {"logging.log_max_attention_logit", "lines of the log"},
    {"logging.log_layer_statistics_interval", "tables in the log"},
    {"device.num_threads", "threads of a rank"},
    {"device.cpu_isa", "instructions, and with them the last bits"},
    {"fault_injection.kind", "the fault"},
};

/// Returns true if the table contains `key`.
bool has_run_time_effect(std::string_view key) {
  return std::ranges::any_of(kRunTimeEffects, [&](const auto& effect) { return effect.first == key; });
}

/// Returns a legal value of the key that differs from its default.
std::string value_of(const Field& field) {
  static const std::map<std::string, std::string> values{
      {"model.num_query_groups", "6"},
      {"model.num_attention_heads", "6"},
      {"model.hidden_size", "1536"},
      {"model.max_position_embeddings", "2048"},
      {"model.make_vocab_size_divisible_by", "4096"},
      {"model.rotary_base", "5000"},
      {"model.rope_local_base_freq", "5000"},
      {"model.window_size", "[16,0]"},
      {"model.window_attn_skip_freq", "[2]"},
      {"model.linear_attention_freq", "[2]"},
      {"model.moe_layer_freq", "[2]"},
      {"model.output_z_loss_coeff", "1e-4"},
      {"training.global_batch_size", "8"},
      {"training.micro_batch_size", "2"},
      {"training.step_batch_size_schedule", "0:2 8:4"},
      {"training.recompute_modules", "core_attn"},
      {"training.train_samples", "20"},
      {"parallel.pipeline_model_parallel_layout", "Et*6|t*6L"},
      {"parallel.hierarchical_context_parallel_sizes", "[1,2]"},
      {"optimizer.lr_warmup_init", "1e-5"},
      {"optimizer.min_lr", "1e-5"},
      {"optimizer.lr", "1e-3"},
      {"optimizer.min_loss_scale", "2"},
      {"optimizer.offload_segment_size", "1024"},
      {"training.low_precision", "[{modules = \"*\", recipe = \"mxfp8\"}]"},
      {"optimizer.param_group", "[{match = \"*\", lr_mult = 0.5}]"},
      {"data.split", "9,1,0"},
      {"checkpoint.allow_changed_keys", "training.seed"},
  };
  if (const auto it = values.find(field.key); it != values.end()) return it->second;
  const std::string given = field.print();
  switch (field.type.kind) {
    case FieldType::Kind::Bool:
      return given == "true" ? "false" : "true";
    case FieldType::Kind::Name:
      return "\"" + field.type.names[0] + "\"" == given ? field.type.names[1 % field.type.names.size()]
                                                        : field.type.names[0];
    case FieldType::Kind::Text:
      return "a";
    default:
      break;
  }
  for (const double candidate : {2.0, 1.0, 3.0, 0.5, 0.25}) {
    const bool is_whole = candidate == static_cast<double>(static_cast<i64>(candidate));
    if (field.type.kind == FieldType::Kind::Integer && !is_whole) continue;
    const bool is_given = !field.type.is_list && std::stod(given) == candidate;
    if (!is_given && field.constraint.accepts(candidate)) return shortest(candidate);
  }
  ADD_FAILURE() << field.key << " has no other legal value; add one to value_of()";
  return given;
}

/// Returns the values derived from a configuration before the run starts: plan, layout, schedules.
std::string derived(const Config& config) {
  std::string text = describe_run(config, kWorld, 1);
  const LrSchedule schedule(config.optimizer, {.train_iters = config.training.train_iters,
                                               .train_samples = config.training.train_samples,
                                               .global_batch_size = config.batch_sizes().front().batch_size});
  for (i64 i = 1; i <= 10; ++i) {
    const i64 position = schedule.position(i, i * config.batch_sizes().front().batch_size);
    text += str("lr ", schedule.lr(position), ", weight decay ", schedule.weight_decay(position), "\n");
  }
  const TrainingEnd end = config.training_end();
  return text + str("end ", end.iterations, " ", end.samples, "\n");
}

TEST(ConfigKeyTest, HasEffectOrIsRejectedByNameWhenSetAlone) {
  const std::string base = derived(parse({}));
  Config defaults;
  std::set<std::string> missing_effects;
  for (const Field& field : config_fields(defaults)) {
    const std::string value = value_of(field);
    if (value == field.print() || "\"" + value + "\"" == field.print()) continue;  // an enum with one name
    std::vector<std::string> args{str("--", field.key, "=", value)};
    if (field.key == "logging.profile_step_end") args.emplace_back("--logging.profile_dir=a");
    if (field.key == "optimizer.weight_decay_incr_style")
      args.insert(args.end(), {"--optimizer.start_weight_decay=0.1", "--optimizer.end_weight_decay=0.2"});
    if (field.key == "training.train_samples" || field.key == "training.step_batch_size_schedule")
      args.insert(args.end(), {"--training.train_iters=0", "--training.train_samples=20"});
    if (field.key == "training.train_samples") args.pop_back();
    if (field.key == "training.step_batch_size_schedule") args.emplace_back("--training.global_batch_size=0");
    const std::string error = error_of(args);
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr(std::string(field.name()))) << args[0];
      continue;
    }
    if (has_run_time_effect(field.key)) continue;
    if (derived(parse(args)) == base) missing_effects.insert(args[0]);
  }
  EXPECT_EQ(missing_effects, std::set<std::string>{})
      << "refuse them in unused_keys.cpp, or name where their effect shows in kRunTimeEffects";
}

TEST(ConfigKeyTest, TableOfRunTimeEffectsNamesOnlyKeys) {
  Config config;
  std::set<std::string> keys;
  for (const Field& field : config_fields(config)) keys.insert(field.key);
  for (const auto& [key, effect] : kRunTimeEffects) EXPECT_TRUE(keys.contains(std::string(key))) << key;
}

/// Arguments with which a key is rejected, and the key.
struct RefusedCase {
  std::vector<std::string> args;
  std::string key;
};

std::vector<RefusedCase> refused_cases() {
  return {
      {{"--optimizer.lr_warmup_init=1e-6"}, "optimizer.lr_warmup_init"},
      {{"--optimizer.lr_wsd_decay_style=linear"}, "optimizer.lr_wsd_decay_style"},
      {{"--optimizer.lr_decay_style=constant", "--optimizer.min_lr=1e-5"}, "optimizer.min_lr"},
      {{"--optimizer.lr_decay_style=constant", "--optimizer.lr_decay_iters=5"}, "optimizer.lr_decay_iters"},
      {{"--optimizer.weight_decay=0.2", "--optimizer.weight_decay_incr_style=linear",
        "--optimizer.start_weight_decay=0.1", "--optimizer.end_weight_decay=0.3"},
       "optimizer.weight_decay"},
      {{"--training.straggler_policy=stop", "--logging.straggler_factor=0"}, "training.straggler_policy"},
      {{"--training.spike_policy=off", "--training.spike_window=5"}, "training.spike_window"},
      {{"--training.spike_policy=off", "--training.spike_z_score=5"}, "training.spike_z_score"},
      {{"--training.max_rollbacks=5"}, "training.max_rollbacks"},
      {{"--training.nan_policy=stop", "--training.max_consecutive_skips=5"}, "training.max_consecutive_skips"},
      {{"--training.eval_iters=0", "--training.eval_on_start"}, "training.eval_on_start"},
      {{"--training.recompute_granularity=selective", "--training.recompute_modules=moe_act"},
       "training.recompute_modules"},
      {{"--training.eval_iters=0", "--logging.sample_prompt=a", "--data.tokenizer_model=b"}, "logging.sample_prompt"},
      {{"--logging.sample_tokens=5"}, "logging.sample_tokens"},
      {{"--logging.profile_ranks=0"}, "logging.profile_ranks"},
      {{"--logging.profile_dir=a"}, "logging.profile_dir"},
      {{"--logging.timing_log_option=all"}, "logging.timing_log_option"},
      {{"--logging.tensorboard_log_interval=5"}, "logging.tensorboard_log_interval"},
      {{"--logging.metrics_every_iteration"}, "logging.metrics_every_iteration"},
      {{"--data.reset_position_ids", "--model.position_embedding_type=none"}, "data.reset_position_ids"},
      {{"--data.mock_data", "--data.split=1,0,0"}, "data.split"},
      {{"--data.fim_rate=1", "--data.tokenizer_model=a", "--data.fim_fragment_rate=1"}, "data.fim_fragment_rate"},
      {{"--data.mock_data", "--data.data_cache_path=a"}, "data.data_cache_path"},
      {{"--parallel.distributed_backend=nccl"}, "parallel.distributed_backend"},
      {{"--parallel.pipeline_schedule=gpipe"}, "parallel.pipeline_schedule"},
      {{"--parallel.pipeline_schedule=zb-h1"}, "parallel.pipeline_schedule"},
      {{"--parallel.cp_comm_type=all_gather"}, "parallel.cp_comm_type"},
      {{"--checkpoint.keep_latest_k=5"}, "checkpoint.keep_latest_k"},
      {{"--checkpoint.save_retain_interval=5"}, "checkpoint.save_retain_interval"},
      {{"--checkpoint.save=a", "--checkpoint.keep_latest_k=0", "--checkpoint.save_retain_interval=5"},
       "checkpoint.save_retain_interval"},
      {{"--checkpoint.local_keep_latest_k=5"}, "checkpoint.local_keep_latest_k"},
      {{"--fault_injection.iteration=5"}, "fault_injection.iteration"},
      {{"--fault_injection.iterations=5"}, "fault_injection.iterations"},
      {{"--fault_injection.rank=0"}, "fault_injection.rank"},
      {{"--fault_injection.kind=spike", "--fault_injection.executions=2"}, "fault_injection.executions"},
      {{"--fault_injection.kind=kill", "--fault_injection.exit_code=5"}, "fault_injection.exit_code"},
      {{"--fault_injection.kind=exit", "--fault_injection.seconds=5"}, "fault_injection.seconds"},
      {{"--model.num_experts=4", "--model.moe_router_load_balancing_type=seq_aux_loss"},
       "model.moe_router_load_balancing_type"},
  };
}

TEST(UnusedKeyTest, ErrorNamesKeyAndAdvice) {
  for (const RefusedCase& refused : refused_cases()) {
    EXPECT_THAT(error_of(refused.args), testing::MatchesRegex(str("command line: --", refused.key, "[^\n]*: [^\n]*")));
    const Config config =
        parse_stored_config(print_config([&] {
                              Config changed;
                              SettingsReader reader(config_fields(changed));
                              std::vector<std::string> args{"--model.vocab_size=1024", "--training.train_iters=10"};
                              args.insert(args.end(), refused.args.begin(), refused.args.end());
                              read_arguments(args, Usage{}, reader);
                              reader.finish();
                              return changed;
                            }()),
                            "iter_0000010/config");
    EXPECT_EQ(unused_keys(config).size(), 1u) << refused.key << ": a checkpoint that stores it must load";
  }
}

TEST(UnusedKeyTest, PrintsConfigurationThatReadsBackWhenOptionTurnsFeatureOff) {
  const std::string toml =
      "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n[optimizer]\nlr_decay_style = \"linear\"\n"
      "min_lr = 1e-5\n";
  const std::string printed =
      print_config(without_unused_keys(parse_config(toml, "run.toml", {{"--optimizer.lr_decay_style=constant"}})));
  EXPECT_EQ(print_config(parse_config(printed, "printed.toml")), printed);
}

TEST(UnusedKeyTest, RejectsValidationSetsWithoutEvaluation) {
  const auto has = [](const std::string& key) { return HasSubstr(key); };
  EXPECT_THAT(error_of({"--training.eval_iters=0", "--data.full_validation"}), has("data.full_validation"));
  EXPECT_THAT(error_of({"--training.eval_iters=0", "--data.multiple_validation_sets"}),
              has("data.multiple_validation_sets"));
}

TEST(UnusedKeyTest, AcceptsEodToken) {
  EXPECT_EQ(error_of({"--data.eod_token=5"}), "");
  EXPECT_EQ(error_of({"--data.mock_data", "--data.eod_token=5"}), "");
}

TEST(UnusedKeyTest, IsNeverRejectedAtItsDefault) {
  Config defaults;
  for (const Field& field : config_fields(defaults)) {
    if (field.key == "model.vocab_size" || field.key == "training.train_iters") continue;
    std::string value = field.print();
    if (value.starts_with('"')) value = value.substr(1, value.size() - 2);
    EXPECT_EQ(test::input_error([&] { parse({str("--", field.key, "=", value)}); }), "") << field.key;
  }
}

TEST(UnusedKeyTest, IsAcceptedFromFileWhenCommandLineTurnsItsFeatureOff) {
  const std::string toml = str(kBase, "spike_window = 5\n[optimizer]\nmin_lr = 1e-5\n[parallel]\npipeline_schedule = ",
                               "'zb-h1'\npipeline_model_parallel_size = 2\n");
  const std::vector<std::string> off{"--training.spike_policy=off", "--optimizer.lr_decay_style=constant",
                                     "--parallel.pipeline_model_parallel_size=1"};
  EXPECT_EQ(test::input_error([&] { parse_config(toml, "run.toml", off); }), "");
}

}  // namespace
}  // namespace mcpp::unused_keys_test
