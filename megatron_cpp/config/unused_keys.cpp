#include "megatron_cpp/config/unused_keys.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Collects the unused keys of one section.
class UnusedKeyCollector {
 public:
  UnusedKeyCollector(const char* section, std::vector<UnusedKey>& keys) : section_(section), keys_(keys) {}

  /// Adds `key` if it is set although `disabled_by` (with its section) makes it meaningless.
  void add(bool is_unused, const char* key, const char* disabled_by, std::string advice) {
    if (is_unused) keys_.push_back({str(section_, ".", key), std::move(advice), disabled_by});
  }

 private:
  const char* section_;
  std::vector<UnusedKey>& keys_;
};

bool can_skip_steps(const TrainingConfig& t) {
  return t.nan_policy == NanPolicy::Skip || t.spike_policy == SpikePolicy::Skip;
}

void find_in_model(const Config& config, std::vector<UnusedKey>& keys) {
  const MoeConfig &moe = config.model.moe, defaults;
  const OneOrList<LoadBalancing>& type = moe.router_load_balancing_type;
  UnusedKeyCollector("model", keys)
      .add(type != defaults.router_load_balancing_type && type != OneOrList(LoadBalancing::None) &&
               moe.total_aux_loss_coeff() == 0,
           "moe_router_load_balancing_type", "model.moe_aux_loss_coeff",
           "only read when moe_aux_loss_coeff is above 0; set that, or remove it");
}

void find_in_training(const Config& config, std::vector<UnusedKey>& keys) {
  const TrainingConfig &t = config.training, defaults;
  UnusedKeyCollector collector("training", keys);
  const bool has_experts = config.model.moe.num_experts > 0;
  collector.add(!has_experts && std::ranges::count(t.recompute_modules, "moe_act") > 0, "recompute_modules",
                "model.num_experts", "\"moe_act\" needs a model with experts (model.num_experts); remove it");
  collector.add(!t.eval_tasks.empty() && t.eval_iters == 0, "eval_tasks", "training.eval_iters",
                "no evaluation runs because training.eval_iters is 0; remove it");
  collector.add(t.eval_on_start && t.eval_iters == 0, "eval_on_start", "training.eval_iters",
                "no evaluation runs because training.eval_iters is 0; remove it");
  collector.add(t.eval_ema && t.eval_iters == 0, "eval_ema", "training.eval_iters",
                "no evaluation runs because training.eval_iters is 0; remove it");
  collector.add(t.eval_ema && config.optimizer.ema_decay == 0, "eval_ema", "optimizer.ema_decay",
                "no averaged weights are kept; set optimizer.ema_decay, or remove it");
  constexpr const char* kNeedsSpikes = "only read when spike_policy is not \"off\"; remove it";
  const bool ignores_spikes = t.spike_policy == SpikePolicy::Off;
  collector.add(ignores_spikes && t.spike_window != defaults.spike_window, "spike_window", "training.spike_policy",
                kNeedsSpikes);
  collector.add(ignores_spikes && t.spike_z_score != defaults.spike_z_score, "spike_z_score", "training.spike_policy",
                kNeedsSpikes);
  collector.add(!can_skip_steps(t) && t.max_consecutive_skips != defaults.max_consecutive_skips,
                "max_consecutive_skips", "training.nan_policy",
                "only read when nan_policy or spike_policy is \"skip\"; remove it");
  collector.add(!config.can_roll_back() && t.max_rollbacks != defaults.max_rollbacks, "max_rollbacks",
                "training.nan_policy", "only read when nan_policy or spike_policy is \"rollback\"; remove it");
  collector.add(t.straggler_policy == StragglerPolicy::Stop && config.logging.straggler_factor == 0, "straggler_policy",
                "logging.straggler_factor", "no straggler is detected because it is 0; set it, or remove this key");
}

void find_in_parallel(const Config& config, std::vector<UnusedKey>& keys) {
  const ParallelConfig &p = config.parallel, defaults;
  UnusedKeyCollector collector("parallel", keys);
  collector.add(p.cp == 1 && p.cp_comm_type != defaults.cp_comm_type, "cp_comm_type", "parallel.context_parallel_size",
                "only read when context_parallel_size is above 1; set that, or remove it");
  collector.add(p.pp == 1 && p.schedule != defaults.schedule, "pipeline_schedule",
                "parallel.pipeline_model_parallel_size",
                str("with one pipeline rank, \"", enum_name(defaults.schedule),
                    "\" is as fast and needs the least memory; set pipeline_model_parallel_size, or remove it"));
  collector.add(config.device.device == DeviceType::Cpu && p.distributed_backend == DistributedBackend::Nccl,
                "distributed_backend", "device.device",
                "NCCL transfers tensors of GPUs; with device.device \"cpu\" remove it");
}

void find_in_optimizer(const Config& config, std::vector<UnusedKey>& keys) {
  const OptimizerConfig &o = config.optimizer, defaults;
  UnusedKeyCollector collector("optimizer", keys);
  const bool is_constant = o.lr_decay_style == LrDecayStyle::Constant;
  constexpr const char* kNeedsDecay = "only read when lr_decay_style is not \"constant\"; remove it";
  collector.add(is_constant && o.min_lr != defaults.min_lr, "min_lr", "optimizer.lr_decay_style", kNeedsDecay);
  // lr_warmup_fraction is a fraction of the decay length, which must then be set.
  const bool needs_no_length = is_constant && o.lr_warmup_fraction == 0;
  collector.add(needs_no_length && o.lr_decay_iters > 0, "lr_decay_iters", "optimizer.lr_decay_style", kNeedsDecay);
  collector.add(needs_no_length && o.lr_decay_samples > 0, "lr_decay_samples", "optimizer.lr_decay_style", kNeedsDecay);
  const bool warms_up = o.lr_warmup_fraction > 0 || o.lr_warmup_iters > 0 || o.lr_warmup_samples > 0;
  collector.add(!warms_up && o.lr_warmup_init != defaults.lr_warmup_init, "lr_warmup_init", "optimizer.lr_warmup_iters",
                "warm-up is off; set lr_warmup_fraction, lr_warmup_iters or lr_warmup_samples, or remove it");
  collector.add(o.lr_decay_style != LrDecayStyle::Wsd && o.lr_wsd_decay_style != defaults.lr_wsd_decay_style,
                "lr_wsd_decay_style", "optimizer.lr_decay_style",
                "only read when lr_decay_style is \"WSD\"; remove it");
  collector.add(o.weight_decay_incr_style != WeightDecayIncrStyle::Constant && o.weight_decay != defaults.weight_decay,
                "weight_decay", "optimizer.weight_decay_incr_style",
                "start_weight_decay and end_weight_decay replace it when weight_decay_incr_style is not \"constant\"; "
                "remove it");
}

void find_in_fim(const DataConfig& d, UnusedKeyCollector& collector) {
  const DataConfig defaults;
  constexpr const char *kRate = "data.fim_rate",
                       *kNeedsRate = "documents are not rearranged; set fim_rate, or remove it";
  const bool is_off = d.fim_rate == 0;
  collector.add(is_off && d.fim_spm_rate != defaults.fim_spm_rate, "fim_spm_rate", kRate, kNeedsRate);
  collector.add(is_off && !d.fim_split_sample.empty(), "fim_split_sample", kRate, kNeedsRate);
  collector.add(is_off && !d.fim_no_prefix.empty(), "fim_no_prefix", kRate, kNeedsRate);
  collector.add(is_off && d.fim_prefix_token != defaults.fim_prefix_token, "fim_prefix_token", kRate, kNeedsRate);
  collector.add(is_off && d.fim_middle_token != defaults.fim_middle_token, "fim_middle_token", kRate, kNeedsRate);
  collector.add(is_off && d.fim_suffix_token != defaults.fim_suffix_token, "fim_suffix_token", kRate, kNeedsRate);
  collector.add(is_off && !d.fim_pad_token.empty(), "fim_pad_token", kRate, kNeedsRate);
  collector.add(d.fim_split_sample.empty() && d.fim_fragment_rate != defaults.fim_fragment_rate, "fim_fragment_rate",
                "data.fim_split_sample", "documents are not split into fragments; set fim_split_sample, or remove it");
}

void find_in_data(const Config& config, std::vector<UnusedKey>& keys) {
  const DataConfig &d = config.data, defaults;
  UnusedKeyCollector collector("data", keys);
  constexpr const char* kNoEvaluation = "no evaluation runs because training.eval_iters is 0; remove it";
  collector.add(d.full_validation && config.training.eval_iters == 0, "full_validation", "training.eval_iters",
                kNoEvaluation);
  collector.add(d.multiple_validation_sets && config.training.eval_iters == 0, "multiple_validation_sets",
                "training.eval_iters", kNoEvaluation);
  collector.add(d.mock_data && d.split != defaults.split, "split", "data.mock_data",
                "mock_data is not split; remove it");
  collector.add(d.mock_data && !d.data_cache_path.empty(), "data_cache_path", "data.mock_data",
                "mock_data has no sample indices; remove it");
  find_in_fim(d, collector);
  collector.add(d.reset_position_ids && config.model.position_embedding_type == PositionEmbedding::None,
                "reset_position_ids", "model.position_embedding_type",
                "the model has no positions (model.position_embedding_type is \"none\"); remove it");
}

void find_in_checkpoint(const Config& config, std::vector<UnusedKey>& keys) {
  const CheckpointConfig &c = config.checkpoint, defaults;
  UnusedKeyCollector collector("checkpoint", keys);
  constexpr const char* kNeedsSave = "needs checkpoint.save, the folder for checkpoints";
  collector.add(c.save.empty() && c.keep_latest_k != defaults.keep_latest_k, "keep_latest_k", "checkpoint.save",
                kNeedsSave);
  const bool sets_retained = c.save_retain_interval > 0;
  collector.add(c.save.empty() && sets_retained, "save_retain_interval", "checkpoint.save", kNeedsSave);
  collector.add(!c.save.empty() && sets_retained && c.keep_latest_k == 0, "save_retain_interval",
                "checkpoint.keep_latest_k", "no checkpoint is ever removed because keep_latest_k is 0; remove it");
  collector.add(c.local_save.empty() && c.local_keep_latest_k != defaults.local_keep_latest_k, "local_keep_latest_k",
                "checkpoint.local_save", "needs checkpoint.local_save, the folder on each node");
  collector.add(c.export_hf_interval == 0 && c.export_hf_max_shard_size != defaults.export_hf_max_shard_size,
                "export_hf_max_shard_size", "checkpoint.export_hf_interval",
                "needs checkpoint.export_hf_interval, the iterations between two exports");
}

void find_in_logging(const Config& config, std::vector<UnusedKey>& keys) {
  const LoggingConfig &l = config.logging, defaults;
  UnusedKeyCollector collector("logging", keys);
  collector.add(!l.sample_prompt.empty() && config.training.eval_iters == 0, "sample_prompt", "training.eval_iters",
                "no evaluation runs that would use it, because training.eval_iters is 0; remove it");
  collector.add(l.sample_prompt.empty() && l.sample_tokens != defaults.sample_tokens, "sample_tokens",
                "logging.sample_prompt", "only read with sample_prompt; set that, or remove it");
  collector.add(l.metrics_every_iteration && config.metrics_path().empty(), "metrics_every_iteration",
                "logging.metrics_path", "no metrics are written; set metrics_path or checkpoint.save, or remove it");
  collector.add(l.tensorboard_dir.empty() && l.tensorboard_log_interval != defaults.tensorboard_log_interval,
                "tensorboard_log_interval", "logging.tensorboard_dir", "needs tensorboard_dir");
  constexpr const char* kNeedsTrace = "no trace is recorded; set profile_step_end, its last iteration, or remove it";
  const bool has_trace = l.profile_step_end > 0;
  collector.add(!has_trace && !l.profile_ranks.empty(), "profile_ranks", "logging.profile_step_end", kNeedsTrace);
  collector.add(!has_trace && !l.profile_dir.empty(), "profile_dir", "logging.profile_step_end", kNeedsTrace);
  collector.add(l.timing_log_level == 0 && l.timing_log_option != defaults.timing_log_option, "timing_log_option",
                "logging.timing_log_level", "no timers are logged; set timing_log_level to 1 or 2, or remove it");
}

void find_in_faults(const Config& config, std::vector<UnusedKey>& keys) {
  const FaultInjectionConfig &f = config.fault_injection, defaults;
  UnusedKeyCollector collector("fault_injection", keys);
  constexpr const char *kKind = "fault_injection.kind", *kNeedsFault = "no fault is injected; set kind, or remove it";
  const bool has_none = f.kind == FaultKind::None;
  collector.add(has_none && f.iteration != defaults.iteration, "iteration", kKind, kNeedsFault);
  collector.add(has_none && f.iterations != defaults.iterations, "iterations", kKind, kNeedsFault);
  collector.add(has_none && f.rank != defaults.rank, "rank", kKind, kNeedsFault);
  collector.add(f.kind != FaultKind::BitFlip && f.executions != defaults.executions, "executions", kKind,
                "only read when kind is \"bit_flip\"; remove it");
  collector.add(f.kind != FaultKind::Exit && f.exit_code != defaults.exit_code, "exit_code", kKind,
                "only read when kind is \"exit\"; remove it");
  collector.add(f.kind != FaultKind::Slow && f.seconds != defaults.seconds, "seconds", kKind,
                "only read when kind is \"slow\"; remove it");
}

}  // namespace

std::vector<UnusedKey> unused_keys(const Config& config) {
  std::vector<UnusedKey> keys;
  find_in_model(config, keys);
  find_in_training(config, keys);
  find_in_parallel(config, keys);
  find_in_optimizer(config, keys);
  find_in_data(config, keys);
  find_in_checkpoint(config, keys);
  find_in_logging(config, keys);
  find_in_faults(config, keys);
  return keys;
}

}  // namespace mcpp
