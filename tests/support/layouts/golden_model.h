// Small models of PyTorch and transformers with their golden values in test::golden_folder(), which tests import and
// train.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "optimizer/lr_schedule.h"
#include "tests/support/build.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/readers/hdf5_file.h"
#include "tests/support/tensors.h"

namespace mcpp::test {

inline constexpr i64 kSteps = 12, kBatch = 4;  ///< of the golden runs

/// Returns the folder of a golden model.
inline Path golden(const std::string& model) {
  return golden_folder() / model;
}

/// Distance of `actual` from `expected`, both as one long vector.
struct Distance {
  double relative = 0;  ///< L2 norm of the difference divided by the L2 norm of `expected`
  double cosine = 0;
  double largest = 0;  ///< largest difference of an element divided by the largest magnitude of `expected`
};

inline Distance distance(const Numbers& actual, const Numbers& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  double aa = 0, ee = 0, ae = 0, dd = 0, largest = 0, magnitude = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i], e = expected[i], d = a - e;
    aa += a * a, ee += e * e, ae += a * e, dd += d * d;
    largest = std::max(largest, std::abs(d)), magnitude = std::max(magnitude, std::abs(e));
  }
  return {.relative = std::sqrt(dd / ee), .cosine = ae / std::sqrt(aa * ee), .largest = largest / magnitude};
}

/// Returns the error of a value relative to the expected one.
inline double relative_error(double actual, double expected) {
  return std::abs(actual - expected) / std::abs(expected);
}

inline OptimizerConfig golden_optimizer() {
  OptimizerConfig config;
  config.lr = 1e-3;
  config.min_lr = 1e-4;
  config.lr_decay_style = LrDecayStyle::Cosine;
  config.lr_warmup_iters = 3;
  config.weight_decay = 0.1;
  config.adam_beta2 = 0.95;
  config.initial_loss_scale = 0x1p16;  // for fp16, at which no step overflows
  return config;
}

/// Returns the values of our parameters with the names and in the layout of PyTorch's modules. Experts keep our layout:
/// transformers 5 has them in one tensor too, although its files do not.
inline std::map<std::string, Numbers> by_module_name(const ModelConfig& model,
                                                     const std::map<std::string, Tensor>& ours) {
  std::map<std::string, Numbers> result;
  const std::vector<WeightRule> rules = weight_map(model, exporting_family(model));
  for (const WeightRule& rule : rules) {
    const std::size_t experts = rule.name.find(".mlp.experts.");
    if (experts == std::string::npos) continue;
    const std::string layer = rule.name.substr(std::strlen("decoder"), experts - std::strlen("decoder"));
    const bool is_first = rule.name.ends_with("linear_fc1.weight");
    result[str("model", layer, ".mlp.experts.", is_first ? "gate_up_proj" : "down_proj")] =
        to_doubles(ours.at(rule.name));
  }
  for (const ForeignParts& foreign : foreign_tensors(rules)) {
    std::string name = foreign.tensor.name;
    if (name.find(".experts.") != std::string::npos) continue;
    const std::string file = "block_sparse_moe.", module = "mlp.";
    if (const std::size_t at = name.find(file); at != std::string::npos) name.replace(at, file.size(), module);
    result[name] = to_doubles(scatter_rows(foreign, [&](const WeightRule& rule) { return ours.at(rule.name); }));
  }
  return result;
}

/// The result of a run of twelve steps.
struct Trajectory {
  Numbers losses, grad_norms, learning_rates;
  std::map<std::string, Numbers> weights;  ///< by Hugging Face name
};

/// An imported model that can be trained, with its golden values.
class GoldenModel {
 public:
  GoldenModel(const std::string& name, DType dtype, std::unique_ptr<Device> device, const Recompute& recompute = {})
      : expected(golden(name) / "expected.h5"),
        self_(make_self_communicator()),
        imported_(import_huggingface(golden(name), dtype, host_)),
        config_(config_of({.model = imported_.model, .dtype = dtype, .optimizer = golden_optimizer(), .tokens = {}},
                          {{.recompute = recompute}})),
        session_(session_of(config_, *self_, {std::move(device), nullptr})),
        state_(context_of(config_, dtype, session_), config_.optimizer, session_.parallel,
               storage_provider(config_, session_)),
        tokens_(expected.read<i32>("tokens")) {
    std::map<std::string, Tensor> weights;
    for (std::size_t i = 0; i < imported_.weights->shards().size(); ++i) {
      weights[imported_.weights->shards()[i].name] = imported_.weights->data(i);
    }
    model().visit([&](Param& param, int) { write_bytes(weights.at("model/" + param.name).raw(), param.value); });
    state_.optimizer().copy_model_to_master();
  }

  /// Returns samples [first, first + count) of a step.
  MicroBatch batch(i64 step, i64 first, i64 count) {
    const i64 length = tokens_.shape[2], seq = length - 1;
    std::vector<i32> tokens(static_cast<std::size_t>(seq * count)), targets(tokens.size());
    MicroBatch result;
    for (i64 b = 0; b < count; ++b) {
      const i32* sample = tokens_.values.data() + (step * kBatch + first + b) * length;
      for (i64 s = 0; s < seq; ++s) {
        const auto to = static_cast<std::size_t>(s * count + b);
        tokens[to] = sample[s], targets[to] = sample[s + 1];
      }
      result.samples.push_back(step * kBatch + first + b);
    }
    result.tokens = integers_of(tokens, *session_.device).view({seq, count});
    result.targets = integers_of(targets, *session_.device).view({seq, count});
    return result;
  }

  /// Returns [batch, seq, vocabulary], like the golden values.
  Numbers logits() {
    MicrobatchContext context;
    context.training = context.saves_for_backward = false;
    const MicroBatch all = batch(0, 0, kBatch);
    const Numbers ours = to_doubles(model().logits(all.tokens, context));  // [seq * batch, padded vocabulary]
    const i64 seq = all.tokens.dim(0), vocab = imported_.model.vocab_size, padded = imported_.model.padded_vocab_size();
    Numbers result(static_cast<std::size_t>(seq * kBatch * vocab));
    for (i64 row = 0; row < seq * kBatch; ++row) {
      const i64 s = row / kBatch, b = row % kBatch;
      std::copy_n(ours.begin() + row * padded, vocab, result.begin() + (b * seq + s) * vocab);
    }
    return result;
  }

  /// Returns the number of targets of a batch.
  i64 targets() const { return kBatch * (tokens_.shape[2] - 1); }

  /// Computes loss and gradient of the first batch. The learning rate of 0 keeps the weights.
  StepOutcome step_in_place(i64 micro_batch_size) { return state_.train_step(batches(0, micro_batch_size), 0, 0); }

  /// Computes loss and gradient of the first batch with other labels and with documents that begin at `starts`, both
  /// [batch, seq], in microbatches of one sample.
  StepOutcome masked_step(const std::vector<i32>& labels, const std::vector<i32>& starts) {
    std::vector<MicroBatch> samples = batches(0, 1);
    const i64 seq = samples[0].tokens.dim(0);
    for (std::size_t b = 0; b < samples.size(); ++b) {
      const auto row = [&](const std::vector<i32>& values) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(b) * seq;
        return integers_of(std::vector<i32>(begin, begin + seq), *session_.device).view({seq, 1});
      };
      samples[b].targets = row(labels);
      samples[b].attention_starts = samples[b].position_starts = row(starts);
    }
    return state_.train_step(samples, 0, 0);
  }

  /// Returns the factor of the gradients of a step.
  double grad_scale(const StepOutcome& step) const { return state_.loss_scale().factor(step.tokens); }

  Trajectory train(i64 micro_batch_size) {
    const LrSchedule schedule(golden_optimizer(), {.train_iters = kSteps, .global_batch_size = kBatch});
    Trajectory result;
    for (i64 step = 0; step < kSteps; ++step) {
      const double lr = schedule.lr(step * kBatch);
      const StepOutcome outcome =
          state_.train_step(batches(step, micro_batch_size), lr, schedule.weight_decay(step * kBatch));
      result.losses.push_back(outcome.loss);
      result.grad_norms.push_back(outcome.grad_norm);
      result.learning_rates.push_back(lr);
    }
    result.weights = by_foreign_name([](Param& param) { return param.value; });
    return result;
  }

  /// Returns the tensor that `member` selects of each parameter, with the names and in the layout of Hugging Face.
  template <class F>
  std::map<std::string, Numbers> by_foreign_name(F&& member) {
    std::map<std::string, Tensor> ours;
    model().visit([&](Param& param, int) { ours[param.name] = copy_of(member(param), host_); });
    return by_module_name(imported_.model, ours);
  }

  Hdf5File expected;

 private:
  GPTModel& model() { return *state_.chunks()[0].model; }

  std::vector<MicroBatch> batches(i64 step, i64 micro_batch_size) {
    std::vector<MicroBatch> result;
    for (i64 first = 0; first < kBatch; first += micro_batch_size) {
      result.push_back(batch(step, first, micro_batch_size));
    }
    return result;
  }

  CpuDevice host_;
  std::unique_ptr<Communicator> self_;
  ImportedModel imported_;
  Config config_;
  Session session_;
  TrainingState state_;
  Hdf5Array<i32> tokens_;
};

}  // namespace mcpp::test
