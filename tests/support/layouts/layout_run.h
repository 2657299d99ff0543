// Short training on any layout, with ranks as threads of the test, and its results in global terms.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "comm/local.h"
#include "data/dataset/batch.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/step/step_replay.h"
#include "tests/support/boxes.h"
#include "tests/support/layouts/dirty_memory.h"
#include "tests/support/layouts/rank_devices.h"

namespace mcpp::test {

/// Layout with a name, and with small buckets unless it sets their size.
struct RunLayout : Layout {
  RunLayout(Layout layout = {}) : RunLayout("one rank", std::move(layout)) {}  // NOLINT(google-explicit-constructor)
  RunLayout(const char* layout_name, Layout layout) : Layout(std::move(layout)), name(layout_name) {
    if (bucket_size == Layout().bucket_size) bucket_size = 2000;
  }
  const char* name;

  int ranks() const { return static_cast<int>(world_size()); }
};

using Weights = std::map<std::string, Numbers>;  ///< unsharded tensors by name, row-major

struct RunResult {
  Numbers losses, grad_norms;
  Weights weights;
  Numbers choices = {};   ///< number of times each expert was chosen, by step and layer
  Weights averages = {};  ///< averaged weights, if the optimizer keeps them
  Numbers logits = {};    ///< largest attention logit and number of clipped heads, by step and layer, if recorded
};

/// Training task, identical on every layout.
struct RunTask {
  ModelConfig model;
  DType dtype = DType::F32;
  Fp8 fp8 = Fp8::None;
  Fp8RecipeName fp8_recipe = Fp8RecipeName::Tensorwise;
  std::vector<LowPrecisionConfig> low_precision = {};
  bool moe_fp8_dispatch = false;
  bool first_last_layers_bf16 = false;
  bool gelu_epilogue = false;
  i64 graph_warmup_steps = 0;  ///< device.cuda_graph_warmup_steps; 0: without graphs
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
  /// Returns true if the token that follows a position of a sample has a loss; null: all have one.
  std::function<bool(i64 sample, i64 position)> has_loss = {};
  const Weights* initial = nullptr;  ///< drawn from the seed if null
  bool async_save = false;
  bool compares_executions = false;  ///< each step is executed twice, which must give identical results
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

/// Returns the configuration of a run of `task` in `layout`.
inline Config config_of(const RunTask& task, const RunLayout& layout) {
  Config config;
  config.model = task.model;
  config.checkpoint.async_save = task.async_save;
  TrainingConfig& t = config.training;
  t.global_batch_size = task.global_batch_size;
  t.train_iters = task.steps;
  t.precision = precision_of(task.dtype);
  t.fp8 = task.fp8;
  t.fp8_recipe = task.fp8_recipe;
  t.low_precision = task.low_precision;
  t.moe_fp8_dispatch = task.moe_fp8_dispatch;
  config.device.gelu_epilogue = task.gelu_epilogue;
  if (task.graph_warmup_steps > 0) {
    config.device.cuda_graph_impl = CudaGraphImpl::Local;
    config.device.cuda_graph_warmup_steps = task.graph_warmup_steps;
  }
  t.first_last_layers_bf16 = task.first_last_layers_bf16;
  config = apply_layout(config, layout);
  config.optimizer = task.optimizer;
  config.training.micro_batch_size = task.micro_batch_size;
  return config;
}

/// Returns the session that initialize() would create, on a device chosen by the test.
inline Session session_of(const Config& config, Communicator& ranks, RankDevices devices) {
  Communicator& world = devices.world ? *devices.world : ranks;
  auto profiler = std::make_unique<Profiler>();
  ParallelState parallel = make_parallel_state(world, layout_of(config, world.size()), config.model.moe.num_experts > 0,
                                               nullptr, profiler.get());
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
        state_(context_of(config_, task.dtype, session_), config_.optimizer, session_.parallel,
               storage_provider(config_, session_)) {
    if (task.initial) load(*task.initial);
  }

  StepOutcome step(i64 step) { return step_of(task_, step); }
  /// Trains a step on the samples of `task`, which uses the same model.
  StepOutcome step_of(const RunTask& task, i64 step) {
    const std::vector<MicroBatch> samples = batches(task, step);
    if (!task_.compares_executions) return state_.train_step(samples, task_.lr(step), task_.weight_decay);
    StepReplay replay(state_, session_.parallel);
    i64 execution = 0;
    const ReplayVerdict verdict = replay.compare([&] {
      dirty_free_memory(device(), ++execution);
      state_.backward(samples);
    });
    EXPECT_EQ(verdict.kind, ReplayVerdict::Kind::Reproducible) << "step " << step << " on " << describe(verdict.ranks);
    update(step);
    return state_.outcome();
  }
  /// Run the parts of a step without blocking the host: the outcome is read when the next backward is queued.
  void backward(i64 step, double loss_grad_factor = 1) { state_.backward(batches(task_, step), loss_grad_factor); }
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
        const Numbers part = to_doubles(values);
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
        set_values(to, part);
      });
    }
    state_.publish_weights();
    state_.optimizer().copy_model_to_master();
    state_.optimizer().start_ema();
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
    for (std::size_t i = 0; task.has_loss && i < microbatch.labels.size(); ++i) {
      const auto at = static_cast<i64>(i);
      if (!task.has_loss(first_sample + at / seq, at % seq)) microbatch.labels[i] = -1;
    }
    if (task.eod >= 0) mask_labels_at_eod(microbatch, task.eod);
    MicroBatch batch{.tokens = on_device(microbatch, microbatch.tokens),
                     .targets = on_device(microbatch, microbatch.labels),
                     .samples = microbatch.samples};
    const std::vector<i32> starts = task.eod >= 0 ? document_starts(microbatch, task.eod) : std::vector<i32>();
    if (task.eod >= 0) batch.attention_starts = batch.position_starts = on_device(microbatch, starts);
    const bool predicts = session_.parallel.has_output_part();
    for (i64 distance = 1; predicts && distance <= task.model.mtp_num_layers; ++distance) {
      const FutureBatch future = future_batch(microbatch, distance, starts);
      batch.future.push_back({on_device(microbatch, future.tokens), on_device(microbatch, future.labels)});
    }
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
    Numbers losses, norms, choices, logits;
    for (i64 step = 0; step < std::min(task.steps, max_steps()); ++step) {
      const StepOutcome outcome = self.step(step);
      losses.push_back(outcome.loss);
      losses.insert(losses.end(), outcome.mtp_losses.begin(), outcome.mtp_losses.end());
      norms.push_back(outcome.grad_norm);
      for (const LayerRoutingStats& layer : outcome.experts)
        choices.insert(choices.end(), layer.tally.tokens.begin(), layer.tally.tokens.end());
      for (const LayerLogits& layer : outcome.logits)
        logits.insert(logits.end(), {layer.largest, static_cast<double>(layer.clipped_heads)});
    }
    const std::lock_guard lock(mutex);
    self.collect(result.weights);
    if (self.state().optimizer().has_ema()) {
      self.state().optimizer().swap_ema();
      self.collect(result.averages);
    }
    if (rank == 0) result.losses = losses, result.grad_norms = norms, result.choices = choices, result.logits = logits;
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

/// Returns a task on learnable_tokens().
inline RunTask learnable_task(const ModelConfig& model, DType dtype = DType::F32) {
  RunTask task{.model = model, .dtype = dtype, .optimizer = {}, .tokens = {}};
  task.tokens = [seq = model.seq_length, vocab = model.vocab_size](i64 sample) {
    return learnable_tokens(sample, seq + 1, vocab);
  };
  return task;
}

}  // namespace mcpp::test
