// Short training on any layout, with ranks as threads of the test, and its results in global terms.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/philox.h"
#include "comm/local.h"
#include "data/dataset/batch.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/model_provider.h"
#include "tests/support/boxes.h"
#include "tests/support/layouts/rank_devices.h"

namespace mcpp::test {

struct RunLayout {
  const char* name = "one rank";
  i64 tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;
  i64 cp = 1;
  CpCommType cp_comm_type = CpCommType::P2p;
  i64 cp_heads = 1;  ///< context-parallel ranks that exchange heads
  i64 ep = 1, etp = 0;
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  i64 virtual_stages = 1;
  int zero_stage = 0;
  i64 instances = 1;  ///< num_distributed_optimizer_instances
  Recompute recompute = {};
  OffloadTier activations = OffloadTier::Device;
  i64 bucket_elements = 2000;
  bool overlaps = true;
  i64 first_layers = 0, last_layers = 0;
  const char* stages = "";
  i64 hpz = 1;  ///< zero_hpz_partition_size
  bool quantized_weights = false;
  GradReduceFormat grad_reduce_format = GradReduceFormat::Full;
  i64 power_sgd_rank = 0;

  int ranks() const { return static_cast<int>(tp * cp * pp * dp); }
};

using Weights = std::map<std::string, Numbers>;  ///< unsharded tensors by name, row-major

struct RunResult {
  Numbers losses, grad_norms;
  Weights weights;
  Numbers choices = {};  ///< number of times each expert was chosen, by step and layer
};

/// Training task, the same on every layout.
struct RunTask {
  ModelConfig model;
  DType dtype = DType::F32;
  Fp8 fp8 = Fp8::None;
  bool first_last_layers_bf16 = false;
  bool gelu_epilogue = false;
  OptimizerConfig optimizer;
  i64 global_batch_size = 8, micro_batch_size = 1, steps = 20;
  std::function<double(i64 step)> lr = [](i64 step) {
    return 2e-3 * static_cast<double>(std::min<i64>(step + 1, 5)) / 5;
  };
  double weight_decay = 0.1;
  /// Returns the seq_length + 1 tokens of a sample.
  std::function<std::vector<i32>(i64 sample)> tokens;
  /// Token that ends documents, which do not attend to each other and count positions and losses separately. -1: each
  /// sample is one document.
  i32 eod = -1;
  const Weights* initial = nullptr;  ///< drawn from the seed if null
  bool async_save = false;
};

/// Returns the samples of a step, with microbatches of two, beyond which memory does not grow: with a pipeline, enough
/// to fill it; otherwise the first microbatch, one in the middle, and the last.
inline i64 samples_of_peak(const RunLayout& layout) {
  return (layout.pp > 1 ? 16 : 6) * layout.dp;
}

/// Reports a signal after a number of passes, and a run time of a number of minutes.
class SignalAfter final : public StepObserver {
 public:
  explicit SignalAfter(i64 passes, double minutes = 0) : passes_left_(passes), minutes_(minutes) {}
  int signal() const override { return passes_left_ < 0 ? 15 : 0; }
  double minutes() const override { return minutes_; }
  void on_pass_finished(i64, i64, i64) override { --passes_left_; }

 private:
  i64 passes_left_;
  double minutes_;
};

/// Returns the configuration of such a run.
inline Config config_of(const RunTask& task, const RunLayout& layout) {
  Config config;
  config.model = task.model;
  config.optimizer = task.optimizer;
  config.checkpoint.async_save = task.async_save;
  TrainingConfig& t = config.training;
  t.micro_batch_size = task.micro_batch_size;
  t.global_batch_size = task.global_batch_size;
  t.train_iters = task.steps;
  t.precision = precision_of(task.dtype);
  t.fp8 = task.fp8;
  config.device.gelu_epilogue = task.gelu_epilogue;
  t.first_last_layers_bf16 = task.first_last_layers_bf16;
  t.recompute_granularity = static_cast<RecomputeGranularity>(layout.recompute.granularity);
  t.recompute_method =
      layout.recompute.method == Recompute::Method::Block ? RecomputeMethod::Block : RecomputeMethod::Uniform;
  t.recompute_num_layers = layout.recompute.num_layers;
  t.distribute_saved_activations = layout.recompute.shards_saved_inputs;
  t.offload_activations = layout.activations;
  if (layout.recompute.core_attn) t.recompute_modules.emplace_back("core_attn");
  if (layout.recompute.layernorm) t.recompute_modules.emplace_back("layernorm");
  if (layout.recompute.mlp_act) t.recompute_modules.emplace_back("mlp_act");
  if (layout.recompute.moe_act) t.recompute_modules.emplace_back("moe_act");
  ParallelConfig& p = config.parallel;
  p.tensor_model_parallel_size = layout.tp;
  p.sequence_parallel = layout.sequence_parallel;
  p.context_parallel_size = layout.cp;
  p.cp_comm_type = layout.cp_comm_type;
  if (layout.cp_comm_type == CpCommType::A2aP2p)
    p.hierarchical_context_parallel_sizes = {layout.cp_heads, layout.cp / layout.cp_heads};
  p.expert_model_parallel_size = layout.ep;
  p.expert_tensor_parallel_size = layout.etp;
  p.moe_token_dispatcher_type = layout.dispatcher;
  p.pipeline_model_parallel_size = layout.pp;
  p.num_virtual_stages_per_pipeline_rank = layout.virtual_stages;
  p.pipeline_schedule = layout.schedule;
  p.decoder_first_pipeline_num_layers = layout.first_layers;
  p.decoder_last_pipeline_num_layers = layout.last_layers;
  p.pipeline_model_parallel_layout = layout.stages;
  p.zero_stage = layout.zero_stage;
  p.num_distributed_optimizer_instances = layout.instances;
  p.zero_hpz_partition_size = layout.hpz;
  p.zero_quantized_weights = layout.quantized_weights;
  p.set_grad_reduce_format(layout.grad_reduce_format);
  p.power_sgd_rank = layout.power_sgd_rank;
  p.ddp_bucket_size = layout.bucket_elements;
  p.overlap_grad_reduce = p.overlap_param_gather = layout.overlaps;
  return config;
}

/// Returns the session that initialize() would create, on a device chosen by the test.
inline Session session_of(const Config& config, Communicator& ranks, RankDevices devices) {
  Communicator& world = devices.world ? *devices.world : ranks;
  auto profiler = std::make_unique<Profiler>();
  ParallelState parallel =
      make_parallel_state(world, parallel_sizes(config), output_rank(config), nullptr, profiler.get());
  if (devices.world) connect_groups(parallel, *devices.device);
  return {.device = std::move(devices.device),
          .profiler = std::move(profiler),
          .gpus = std::move(devices.world),
          .parallel = std::move(parallel),
          .node = &ranks,
          .recorder = nullptr,
          .job = {}};
}

/// Returns the program's model context, but in a type that configurations do not offer: fp64 is for tests only.
inline ModelContext context_of(const Config& config, DType dtype, Session& session) {
  ModelContext context = model_provider(config, session);
  context.dtype = dtype;
  return context;
}

class LayoutRank {
 public:
  LayoutRank(const RunTask& task, const RunLayout& layout, Communicator& ranks,
             const RankDevicesFactory& make_devices = make_default_devices)
      : task_(task),
        config_(config_of(task, layout)),
        session_(session_of(config_, ranks, make_devices(ranks))),
        state_(context_of(config_, task.dtype, session_), config_.optimizer, layout_provider(config_, session_)) {
    if (task.initial) load(*task.initial);
  }

  StepOutcome step(i64 step) { return state_.train_step(batches(task_, step), task_.lr(step), task_.weight_decay); }
  /// Parts of a step, for a host that waits for nothing: the outcome is read when the next backward is queued.
  void backward(i64 step) { state_.backward(batches(task_, step)); }
  void update(i64 step) { state_.update({.lr = task_.lr(step), .weight_decay = task_.weight_decay}); }
  /// Evaluates the samples of a step of `held_out`, which uses the same model.
  EvaluationOutcome evaluate(const RunTask& held_out, i64 step) {
    start_evaluation(held_out, step);
    return state_.evaluation();
  }
  void start_evaluation(const RunTask& held_out, i64 step) { state_.start_evaluation(batches(held_out, step)); }
  /// Returns the logits that follow the token at `position` of a sample, with microbatches of one sample.
  Numbers next_logits(const RunTask& task, i64 sample, i64 position) {
    const std::vector<float> logits = state_.next_logits(micro_batch(task, sample), position);
    return {logits.begin(), logits.end()};
  }
  TrainingState& state() { return state_; }
  ParallelState& parallel() { return session_.parallel; }
  Profiler& profiler() { return *session_.profiler; }
  Device& device() { return *session_.device; }

  /// Adds the weights that this rank would save.
  void collect(Weights& weights) {
    for (const ParamAndGradBuffer* buffer : state_.buffers()) {
      if (buffer->replicas().rank() != 0) continue;
      buffer->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
        if (!state_.should_save(param)) return;
        Numbers& full = weights[param.name];
        full.resize(static_cast<std::size_t>(numel(param.box.global)), std::nan(""));
        const Numbers part = numbers(values);
        for (std::size_t i = 0; i < part.size(); ++i)
          full[static_cast<std::size_t>(global_index(param.box, first + static_cast<i64>(i)))] = part[i];
      });
    }
  }

 private:
  void load(const Weights& weights) {
    for (const TrainingState::Chunk& chunk : state_.chunks()) {
      chunk.memory->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
        const Numbers& full = weights.at(param.name);
        Numbers part(static_cast<std::size_t>(values.numel()));
        for (std::size_t i = 0; i < part.size(); ++i)
          part[i] = full[static_cast<std::size_t>(global_index(param.box, first + static_cast<i64>(i)))];
        Tensor to = values;
        set_numbers(to, part);
      });
    }
    state_.publish_weights();
    state_.optimizer().copy_model_to_master();
  }

  /// Returns this rank's microbatches of a step, distributed as Megatron-LM does.
  std::vector<MicroBatch> batches(const RunTask& task, i64 step) {
    const Communicator& data = *session_.parallel.dp;
    const i64 dp = data.size(), rank = data.rank(), b = task.micro_batch_size;
    std::vector<MicroBatch> result;
    for (i64 first = rank * b; first < task.global_batch_size; first += dp * b)
      result.push_back(micro_batch(task, step * task.global_batch_size + first));
    return result;
  }

  MicroBatch micro_batch(const RunTask& task, i64 first_sample) {
    const i64 seq = task.model.seq_length;
    Batch microbatch{.batch_size = task.micro_batch_size, .seq_length = seq, .tokens = {}, .labels = {}, .samples = {}};
    for (i64 i = 0; i < task.micro_batch_size; ++i) {
      const std::vector<i32> sample = task.tokens(first_sample + i);
      microbatch.tokens.insert(microbatch.tokens.end(), sample.begin(), sample.end() - 1);
      microbatch.labels.insert(microbatch.labels.end(), sample.begin() + 1, sample.end());
      microbatch.samples.push_back(first_sample + i);
    }
    if (task.eod >= 0) mask_labels_at_eod(microbatch, task.eod);
    MicroBatch batch{.tokens = on_device(microbatch, microbatch.tokens),
                     .targets = on_device(microbatch, microbatch.labels),
                     .samples = microbatch.samples};
    if (task.eod >= 0)
      batch.attention_starts = batch.position_starts = on_device(microbatch, document_starts(microbatch, task.eod));
    return shard_microbatch(batch, task.model, state_.chunks()[0].model->context().cp);
  }

  /// Transposes [b, s] on the host to [s, b] on the device.
  Tensor on_device(const Batch& batch, const std::vector<i32>& values) {
    const i64 s = batch.seq_length, b = batch.batch_size;
    std::vector<i32> ordered(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<i64>(i);
      ordered[static_cast<std::size_t>(at % s * b + at / s)] = values[i];
    }
    return integers_of(ordered, *session_.device).view({s, b});
  }

  const RunTask& task_;
  Config config_;
  Session session_;
  TrainingState state_;
};

inline RunResult run_layout(const RunTask& task, const RunLayout& layout,
                            const RankDevicesFactory& make_devices = make_default_devices) {
  RunResult result;
  std::mutex mutex;
  run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
    LayoutRank self(task, layout, ranks, make_devices);
    Numbers losses, norms, choices;
    for (i64 step = 0; step < std::min(task.steps, max_steps()); ++step) {
      const StepOutcome outcome = self.step(step);
      losses.push_back(outcome.loss);
      norms.push_back(outcome.grad_norm);
      for (const LayerRoutingStats& layer : outcome.experts)
        choices.insert(choices.end(), layer.tally.tokens.begin(), layer.tally.tokens.end());
    }
    const std::lock_guard lock(mutex);
    self.collect(result.weights);
    if (rank == 0) result.losses = losses, result.grad_norms = norms, result.choices = choices;
  });
  return result;
}

/// Returns samples that can be learned: few of the tokens occur, and most follow from the previous one.
inline std::vector<i32> learnable_tokens(i64 sample, i64 length, i64 vocab) {
  const auto used = static_cast<u64>(std::min<i64>(vocab, 8));
  std::vector<i32> tokens;
  u64 token = 0;
  for (i64 i = 0; i < length; ++i) {
    const u64 noise = philox_key(5, "tokens", static_cast<u64>(sample * length + i));
    token = noise % 4 == 0 ? noise / 4 % used : (token + 1) % used;
    tokens.push_back(static_cast<i32>(token));
  }
  return tokens;
}

/// Returns a task on such samples.
inline RunTask learnable_task(const ModelConfig& model, DType dtype = DType::F32) {
  RunTask task{.model = model, .dtype = dtype, .optimizer = {}, .tokens = {}};
  task.tokens = [seq = model.seq_length, vocab = model.vocab_size](i64 sample) {
    return learnable_tokens(sample, seq + 1, vocab);
  };
  return task;
}

}  // namespace mcpp::test
