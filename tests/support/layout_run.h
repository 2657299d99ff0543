// A short training on any layout, its ranks as threads of the test, and what comes out of it in global terms.
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
#include "megatron_cpp/step/training_state.h"
#include "tests/support/boxes.h"

namespace mcpp::test {

struct RunLayout {
  const char* name = "one rank";
  i64 tp = 1, pp = 1, dp = 1;
  bool sequence_parallel = false;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  i64 virtual_stages = 1;
  int zero_stage = 0;
  i64 instances = 1;  ///< num_distributed_optimizer_instances
  Recompute recompute = {};
  i64 bucket_elements = 2000;
  bool overlaps = true;
  i64 first_layers = 0, last_layers = 0;
  const char* stages = "";

  int ranks() const { return static_cast<int>(tp * pp * dp); }
};

using Weights = std::map<std::string, Numbers>;  ///< whole tensors by name, row-major

struct RunResult {
  Numbers losses, grad_norms;
  Weights weights;
};

/// What is trained, the same on every layout.
struct RunTask {
  ModelConfig model;
  DType dtype = DType::F32;
  OptimizerConfig optimizer;
  i64 global_batch_size = 8, micro_batch_size = 1, steps = 20;
  std::function<double(i64 step)> lr = [](i64 step) {
    return 2e-3 * static_cast<double>(std::min<i64>(step + 1, 5)) / 5;
  };
  double weight_decay = 0.1;
  /// seq_length + 1 tokens of a sample.
  std::function<std::vector<i32>(i64 sample)> tokens;
  const Weights* initial = nullptr;  ///< drawn from the seed when null
};

/// What a rank runs on.
struct RankPlace {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> world;  ///< of all ranks, for tensors of the device; null: the ranks' own carries them
};
using PlaceOfRank = std::function<RankPlace(Communicator& ranks)>;

inline RankPlace cpu_place(Communicator&) {
  return {std::make_unique<CpuDevice>(), nullptr};
}

/// A rank that receives a signal, once it has begun so many passes, and that has run for so many minutes.
class SignalAfter final : public StepWatch {
 public:
  explicit SignalAfter(i64 passes, double minutes = 0) : passes_left_(passes), minutes_(minutes) {}
  int signal() const override { return passes_left_ < 0 ? 15 : 0; }
  double minutes() const override { return minutes_; }
  void passed(i64, i64, i64) override { --passes_left_; }

 private:
  i64 passes_left_;
  double minutes_;
};

class LayoutRank {
 public:
  LayoutRank(const RunTask& task, const RunLayout& layout, Communicator& ranks, const PlaceOfRank& place = cpu_place)
      : task_(task),
        place_(place(ranks)),
        parallel_(make_parallel_state(place_.world ? *place_.world : ranks,
                                      {.tensor_model_parallel_size = layout.tp,
                                       .pipeline_model_parallel_size = layout.pp,
                                       .num_distributed_optimizer_instances = layout.instances},
                                      row_of(layout.schedule).placement == StagePlacement::V ? 0 : -1)),
        state_({.config = task.model,
                .dtype = task.dtype,
                .recompute = layout.recompute,
                .device = *place_.device,
                .tp = *parallel_.tp,
                .sequence_parallel = layout.sequence_parallel,
                .output_rank = parallel_.output_rank},
               task.optimizer,
               {.parallel = parallel_,
                .schedule = layout.schedule,
                .stages = split_stages({.num_layers = task.model.num_layers,
                                        .pipeline_model_parallel_size = layout.pp,
                                        .virtual_stages = layout.virtual_stages,
                                        .decoder_first_pipeline_num_layers = layout.first_layers,
                                        .decoder_last_pipeline_num_layers = layout.last_layers,
                                        .pipeline_model_parallel_layout = layout.stages,
                                        .placement = row_of(layout.schedule).placement}),
                .data_parallel = {.zero_stage = layout.zero_stage,
                                  .bucket_elements = layout.bucket_elements,
                                  .overlap_grad_reduce = layout.overlaps,
                                  .overlap_param_gather = layout.overlaps}}) {
    if (task.initial) load(*task.initial);
  }

  StepOutcome step(i64 step) { return state_.train_step(batches(task_, step), task_.lr(step), task_.weight_decay); }
  /// A step's parts, for a host that waits for nothing: its outcome is taken when the next one's backward is queued.
  void backward(i64 step) { state_.backward(batches(task_, step)); }
  void update(i64 step) { state_.update({.lr = task_.lr(step), .weight_decay = task_.weight_decay}); }
  /// Of the samples of a step of `held_out`, which has the same model.
  EvaluationOutcome evaluate(const RunTask& held_out, i64 step) {
    start_evaluation(held_out, step);
    return state_.evaluation();
  }
  void start_evaluation(const RunTask& held_out, i64 step) { state_.start_evaluation(batches(held_out, step)); }
  TrainingState& state() { return state_; }
  ParallelState& parallel() { return parallel_; }
  Device& device() { return *place_.device; }

  /// Adds the weights that this rank is the one to save.
  void collect(Weights& weights) {
    for (const ParamAndGradBuffer* buffer : state_.buffers()) {
      if (buffer->replicas().rank() != 0) continue;
      buffer->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
        if (!state_.saves(param)) return;
        Numbers& whole = weights[param.name];
        whole.resize(static_cast<std::size_t>(numel(param.box.global)), std::nan(""));
        const Numbers part = numbers(values);
        for (std::size_t i = 0; i < part.size(); ++i)
          whole[static_cast<std::size_t>(global_index(param.box, first + static_cast<i64>(i)))] = part[i];
      });
    }
  }

 private:
  void load(const Weights& weights) {
    for (const TrainingState::Chunk& chunk : state_.chunks()) {
      chunk.memory->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
        const Numbers& whole = weights.at(param.name);
        Numbers part(static_cast<std::size_t>(values.numel()));
        for (std::size_t i = 0; i < part.size(); ++i)
          part[i] = whole[static_cast<std::size_t>(global_index(param.box, first + static_cast<i64>(i)))];
        Tensor to = values;
        set_numbers(to, part);
      });
    }
    state_.publish_weights();
    state_.optimizer().copy_model_to_master();
  }

  /// This rank's microbatches of a step, dealt out as Megatron-LM does.
  std::vector<MicroBatch> batches(const RunTask& task, i64 step) {
    const i64 dp = parallel_.data->size(), rank = parallel_.data->rank(), b = task.micro_batch_size;
    std::vector<MicroBatch> result;
    for (i64 first = rank * b; first < task.global_batch_size; first += dp * b)
      result.push_back(micro_batch(task, step * task.global_batch_size + first));
    return result;
  }

  MicroBatch micro_batch(const RunTask& task, i64 first_sample) {
    const i64 seq = task.model.seq_length, b = task.micro_batch_size;
    const auto count = static_cast<std::size_t>(seq * b);
    std::vector<i32> tokens(count), targets(count);
    MicroBatch batch;
    for (i64 i = 0; i < b; ++i) {
      const std::vector<i32> sample = task.tokens(first_sample + i);
      for (i64 s = 0; s < seq; ++s) {
        const auto to = static_cast<std::size_t>(s * b + i), from = static_cast<std::size_t>(s);
        tokens[to] = sample[from], targets[to] = sample[from + 1];
      }
      batch.samples.push_back(first_sample + i);
    }
    batch.tokens = integers_of(tokens, *place_.device).view({seq, b});
    batch.targets = integers_of(targets, *place_.device).view({seq, b});
    return batch;
  }

  const RunTask& task_;
  RankPlace place_;
  ParallelState parallel_;
  TrainingState state_;
};

inline RunResult run_layout(const RunTask& task, const RunLayout& layout, const PlaceOfRank& place = cpu_place) {
  RunResult result;
  std::mutex mutex;
  run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
    LayoutRank self(task, layout, ranks, place);
    Numbers losses, norms;
    for (i64 step = 0; step < task.steps; ++step) {
      const StepOutcome outcome = self.step(step);
      losses.push_back(outcome.loss);
      norms.push_back(outcome.grad_norm);
    }
    const std::lock_guard lock(mutex);
    self.collect(result.weights);
    if (rank == 0) result.losses = losses, result.grad_norms = norms;
  });
  return result;
}

/// Samples with something to learn: few of the tokens occur, and most follow from the one before.
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

/// A task on such samples.
inline RunTask learnable_task(const ModelConfig& model, DType dtype = DType::F32) {
  RunTask task{.model = model, .dtype = dtype, .optimizer = {}, .tokens = {}};
  task.tokens = [seq = model.seq_length, vocab = model.vocab_size](i64 sample) {
    return learnable_tokens(sample, seq + 1, vocab);
  };
  return task;
}

}  // namespace mcpp::test
