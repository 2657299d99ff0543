// Training with passes recorded in CUDA graphs is bitwise identical to training without.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/memory_run.h"
#include "tests/support/layouts/resumed_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tiny_model.h"

namespace mcpp::recorded_passes_test {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

struct Case {
  const char* name;
  RunTask task;
  RunLayout layout = {};
};

ModelConfig gpt2_with_dropout() {
  ModelConfig config = test::tiny_gpt2();
  config.num_layers = 2;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

ModelConfig llama() {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 2;
  return config;
}

/// Sizes that cuDNN's attention supports.
ModelConfig cudnn_llama() {
  ModelConfig config = llama();
  config.num_layers = 1;
  config.hidden_size = 128;
  config.ffn_hidden_size = 64;
  config.num_attention_heads = 2;
  config.num_query_groups = 1;
  config.seq_length = 128;
  config.vocab_size = 64;
  return config;
}

/// Experts of which all inputs of a pass change between microbatches or steps: the jitter of samples, losses with the
/// routing of the previous step, and a bias that steps update.
ModelConfig padded_experts(const std::function<void(MoeConfig&)>& change = [](MoeConfig&) {}) {
  ModelConfig config = llama();
  config.add_mlp_bias = true;
  MoeConfig& moe = config.moe;
  moe.num_experts = 4, moe.ffn_hidden_size = 24;
  moe.expert_capacity_factor = 1, moe.pad_expert_input_to_capacity = true;
  moe.router_load_balancing_type =
      OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss});
  moe.aux_loss_coeff = OneOrList(std::vector{0.02, 0.01, 0.03}), moe.z_loss_coeff = 1e-3;
  moe.router_score_function = RouterScore::Sigmoid, moe.router_enable_expert_bias = true;
  moe.input_jitter_eps = 0.1, moe.shared_expert_intermediate_size = 16;
  change(moe);
  return config;
}

RunTask task_of(const ModelConfig& model, DType dtype, i64 microbatches = 4) {
  RunTask task = test::learnable_task(model, dtype);
  task.micro_batch_size = 2;
  task.global_batch_size = 2 * microbatches;
  task.steps = 5;
  return task;
}

RunTask with(RunTask task, const std::function<void(RunTask&)>& change) {
  change(task);
  return task;
}

RunLayout recomputing(Recompute recompute) {
  return {"recompute", {.recompute = std::move(recompute)}};
}

std::vector<Case> expert_cases() {
  if (!test::built_with_cuda()) return {};
  const RunTask experts_bf16 = task_of(padded_experts(), DType::BF16);
  using Granularity = Recompute::Granularity;
  return {
      {"experts", task_of(padded_experts(), DType::F32)},
      {"experts_bf16", experts_bf16},
      {"experts_fp16",
       with(task_of(padded_experts(), DType::F16), [](RunTask& task) { task.optimizer.initial_loss_scale = 0x1p20; })},
      {"experts_forced", task_of(padded_experts([](MoeConfig& moe) {
                                   moe.router_force_load_balancing = true, moe.shared_expert_gate = true;
                                   moe.token_drop_policy = TokenDropPolicy::Position;
                                 }),
                                 DType::BF16)},
      {"experts_weighted_inputs", task_of(padded_experts([](MoeConfig& moe) {
                                            moe.router_topk = 1, moe.apply_probs_on_input = true, moe.latent_size = 20;
                                            moe.router_dtype = RouterDType::Fp64;
                                          }),
                                          DType::BF16)},
      {"experts_prediction", with(experts_bf16, [](RunTask& task) { task.model.mtp_num_layers = 1; })},
      {"experts_recompute", experts_bf16,
       recomputing({.granularity = Granularity::Selective, .layernorm = true, .mlp_act = true, .moe_act = true})},
      {"experts_recompute_full", experts_bf16, recomputing({.granularity = Granularity::Full})},
      {"experts_dp2_zero1", experts_bf16, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}},
  };
}

std::vector<Case> cases() {
  if (!test::built_with_cuda()) return {};
  const RunTask gpt2 = task_of(gpt2_with_dropout(), DType::F32), llama_bf16 = task_of(llama(), DType::BF16);
  using Granularity = Recompute::Granularity;
  return {
      {"gpt2_dropout", gpt2},
      {"gpt2_dropout_bf16", task_of(gpt2_with_dropout(), DType::BF16)},
      {"gpt2_one_microbatch", task_of(gpt2_with_dropout(), DType::F32, 1)},
      {"gpt2_two_microbatches", task_of(gpt2_with_dropout(), DType::BF16, 2)},
      {"llama_fp32", task_of(llama(), DType::F32)},
      {"llama_bf16", llama_bf16},
      {"llama_fp16",
       with(task_of(llama(), DType::F16), [](RunTask& task) { task.optimizer.initial_loss_scale = 0x1p20; })},
      {"cudnn_llama", task_of(cudnn_llama(), DType::BF16)},
      {"documents", with(gpt2, [](RunTask& task) { task.eod = 3; })},
      {"documents_mamba", with(task_of(test::tiny_mamba(), DType::F32), [](RunTask& task) { task.eod = 3; })},
      {"gelu_epilogue",
       with(task_of(gpt2_with_dropout(), DType::BF16), [](RunTask& task) { task.gelu_epilogue = true; })},
      {"muon", with(llama_bf16, [](RunTask& task) { task.optimizer.optimizer = OptimizerKind::Muon; })},
      {"prediction", with(gpt2, [](RunTask& task) { task.model.mtp_num_layers = 1; })},
      {"prediction_untied", with(llama_bf16, [](RunTask& task) { task.model.mtp_num_layers = 2; })},
      {"z_loss", with(llama_bf16, [](RunTask& task) { task.model.output_z_loss_coeff = 1e-3; })},
      {"qk_clip", with(llama_bf16,
                       [](RunTask& task) {
                         task.optimizer.qk_clip = true;
                         task.optimizer.qk_clip_threshold = 0.05;
                       })},
      {"states_on_host", with(gpt2, [](RunTask& task) { task.optimizer.offload = OffloadTier::Host; })},
      {"latent", task_of(test::tiny_latent_models().first, DType::BF16)},
      {"delta_net", task_of(test::tiny_delta_net(), DType::F32)},
      {"mamba", task_of(test::tiny_mamba(), DType::BF16)},
      {"gpt_oss", task_of(test::tiny_gpt_oss(), DType::BF16)},
      {"llama4", task_of(test::tiny_llama4(), DType::BF16)},
      {"recompute_full", gpt2, recomputing({.granularity = Granularity::Full})},
      {"recompute_selective", gpt2,
       recomputing({.granularity = Granularity::Selective, .core_attn = true, .layernorm = true, .mlp_act = true})},
      {"gpipe", gpt2, {"gpipe", {.schedule = ScheduleKind::GPipe}}},
      {"zb_h1", gpt2, {"zb_h1", {.schedule = ScheduleKind::ZbH1}}},
      {"dp2", gpt2, {"dp2", {.dp = 2}}},
      {"dp2_zero1", gpt2, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}},
      {"dp2_zero1_bf16", llama_bf16, {"dp2_zero1", {.dp = 2, .zero_stage = 1}}},
      {"dp2_zero1_quantized",
       llama_bf16,
       {"dp2_zero1", {.dp = 2, .zero_stage = 1, .formats = {.quantized_gradients = true}}}},
      {"dp2_power_sgd", llama_bf16, {"dp2", {.dp = 2, .formats = {.power_sgd_rank = 2}}}},
      {"dp2_zero1_serial",
       gpt2,
       {"dp2_zero1", {.dp = 2, .zero_stage = 1, .overlap_grad_reduce = false, .overlap_param_gather = false}}},
  };
}

RunTask recorded(RunTask task, i64 warmup_steps = 1) {
  task.graph_warmup_steps = warmup_steps;
  return task;
}

class RecordedPassesTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
  }
  static RunResult run(const RunTask& task, const RunLayout& layout = GetParam().layout) {
    return test::run_layout(task, layout, test::make_nccl_devices);
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecordedPassesTest);
INSTANTIATE_TEST_SUITE_P(Runs, RecordedPassesTest, testing::ValuesIn(cases()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });
INSTANTIATE_TEST_SUITE_P(RunsWithExperts, RecordedPassesTest, testing::ValuesIn(expert_cases()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

TEST_P(RecordedPassesTest, IsBitwiseIdentical) {
  const RunTask& task = GetParam().task;
  test::expect_same_bits(run(recorded(task)), run(task));
}

/// Tests of one model, each on one GPU.
class RecordedStepsTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
  }
  static RunTask task() { return task_of(gpt2_with_dropout(), DType::BF16); }
  /// Calls f with one rank, and returns its losses.
  static test::Numbers losses(const RunTask& task, const std::function<void(LayoutRank&, test::Numbers&)>& f) {
    test::Numbers result;
    run_local_ranks(1, [&](Communicator& ranks, int) {
      LayoutRank self(task, {}, ranks, test::make_nccl_devices);
      f(self, result);
    });
    return result;
  }
  static const RecordedPasses& passes(LayoutRank& rank) {
    return *rank.state().chunks().front().stage->recorded_passes();
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecordedStepsTest);
INSTANTIATE_TEST_SUITE_P(Devices, RecordedStepsTest,
                         testing::ValuesIn(test::built_with_cuda() ? std::vector{DeviceType::Cuda}
                                                                   : std::vector<DeviceType>()),
                         [](const auto& p) { return test::name_of(p.param); });

TEST_P(RecordedStepsTest, RecordsEachKindOnceAfterWarmUp) {
  losses(recorded(task(), 2), [](LayoutRank& self, test::Numbers&) {
    for (i64 step = 0; step < 2; ++step) self.step(step);
    EXPECT_EQ(passes(self).count(), 0);
    EXPECT_EQ(passes(self).arena_bytes(), 0);
    self.step(2);
    EXPECT_EQ(passes(self).count(), 1) << "the microbatches after the first";
    self.step(3);
    EXPECT_EQ(passes(self).count(), 2);
    const i64 bytes = passes(self).arena_bytes(), peak = self.device().memory().total.peak;
    for (i64 step = 4; step < 7; ++step) self.step(step);
    EXPECT_EQ(passes(self).count(), 2);
    EXPECT_EQ(passes(self).arena_bytes(), bytes);
    EXPECT_EQ(self.device().memory().total.peak, peak);
  });
}

/// The arena of the recordings is part of the peak, and known before the run except for the workspaces of kernels.
TEST_P(RecordedStepsTest, PeakMemoryIsEstimated) {
  for (const char* name : {"gpt2", "padded_experts"}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      ModelConfig model = test::memory_model(name);
      test::set_num_layers(model, 2);
      if (model.moe.num_experts > 0) model.moe.layer_freq = {1};
      RunTask task = recorded(task_of(model, dtype, 3));
      losses(task, [&](LayoutRank& self, test::Numbers&) {
        for (i64 step = 0; step < 4; ++step) self.step(step);
        self.evaluate(task, 100);  // without a capacity
        self.device().reset_peak();
        self.step(4);
        const MemoryTable& memory = self.device().memory();
        const double measured = static_cast<double>(memory.total.peak) - test::peak_of(memory, MemoryClass::Workspace) -
                                test::peak_of(memory, MemoryClass::Other);
        Config config = test::config_of(task, {});
        config.device.device = DeviceType::Cuda;
        const double planned = estimate_memory_by_stage(config, 1)[0].total();
        EXPECT_NEAR(measured / planned, 1, 0.03) << name << " " << name_of(dtype) << ": " << memory.to_string();
      });
    }
  }
}

/// Passes that are not recorded use the memory of those that are.
TEST_P(RecordedStepsTest, PeakMemoryIsThatOfRecordedSteps) {
  RunTask trained = recorded(task());
  trained.model.hidden_dropout = trained.model.attention_dropout = 0;  // evaluations have other tensors instead
  for (const ScheduleKind schedule : {ScheduleKind::OneFOneB, ScheduleKind::GPipe}) {
    run_local_ranks(1, [&](Communicator& ranks, int) {
      LayoutRank self(trained, {"one rank", {.schedule = schedule}}, ranks, test::make_nccl_devices);
      for (i64 step = 0; step < 3; ++step) self.step(step);
      self.device().reset_peak();
      self.step(3);
      const i64 peak = self.device().memory().total.peak, arena = passes(self).arena_bytes();
      const auto clock = make_device_clock(self.device());
      self.profiler().start(clock.get());
      self.step(4);
      self.profiler().stop();
      EXPECT_EQ(self.device().memory().total.peak, peak);
      EXPECT_EQ(passes(self).arena_bytes(), arena);
      self.evaluate(trained, 100);
      EXPECT_EQ(self.device().memory().total.peak, peak);
      EXPECT_EQ(passes(self).arena_bytes(), arena);
    });
  }
}

TEST_P(RecordedStepsTest, LaunchesAreTimed) {
  losses(recorded(task()), [](LayoutRank& self, test::Numbers&) {
    self.profiler().enable_timers(Detail::Microbatch);
    for (i64 step = 0; step < 4; ++step) {
      self.step(step);
      const std::map<std::string, double> seconds = self.profiler().take_seconds();
      EXPECT_EQ(seconds.contains("graph-launch"), step > 0) << step;
      EXPECT_EQ(seconds.contains("backward-compute"), step < 3) << step;
    }
  });
}

TEST_P(RecordedStepsTest, EvaluationsBetweenStepsAreIdentical) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    const RunTask held_out = task();
    for (i64 step = 0; step < 5; ++step) {
      losses.push_back(self.step(step).loss);
      losses.push_back(self.evaluate(held_out, 100 + step).loss);
      for (const double logit : self.next_logits(held_out, 200 + step, 3)) losses.push_back(logit);
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
}

/// Statistics of the routers, which a pass adds up on the GPU, are those of each step.
TEST_P(RecordedStepsTest, RoutingStatisticsAreIdentical) {
  const RunTask experts = task_of(padded_experts(), DType::BF16);
  const auto train = [&](LayoutRank& self, test::Numbers& losses) {
    for (i64 step = 0; step < 5; ++step) {
      const StepOutcome outcome = self.step(step);
      losses.push_back(outcome.loss);
      for (const LayerRoutingStats& layer : outcome.experts) {
        const std::vector<double> values = layer.tally.values();
        losses.insert(losses.end(), values.begin(), values.end());
      }
      losses.push_back(self.evaluate(experts, 100 + step).loss);  // without a capacity
    }
  };
  const test::Numbers expected = losses(experts, train);
  EXPECT_GT(expected.size(), 5 * 2u);
  EXPECT_EQ(losses(recorded(experts), train), expected);
}

TEST_P(RecordedStepsTest, SampleLossesAreIdentical) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    self.state().record_sample_losses(true);
    for (i64 step = 0; step < 4; ++step) {
      self.step(step);
      for (const auto& [sample, loss] : self.state().sample_losses())
        losses.insert(losses.end(), {double(sample), loss});
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
}

TEST_P(RecordedStepsTest, StepsWithAttentionLogitsAreIdentical) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    for (i64 step = 0; step < 7; ++step) {
      self.state().record_attention_logits(step % 2 == 1);
      const StepOutcome outcome = self.step(step);
      losses.push_back(outcome.loss);
      for (const LayerLogits& layer : outcome.logits) losses.push_back(layer.largest);
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
}

TEST_P(RecordedStepsTest, TracedAndObservedStepsAreIdentical) {
  i64 observed = 0;
  const auto train = [&observed](LayoutRank& self, test::Numbers& losses) {
    GPTModel& model = *self.state().chunks().front().model;
    for (i64 step = 0; step < 7; ++step) {
      const auto clock = make_device_clock(self.device());
      if (step == 3) self.profiler().start(clock.get());
      if (step == 5) model.observe_layers([&](i64, const Tensor&) { ++observed; });
      losses.push_back(self.step(step).loss);
      if (step == 3) {
        const Profiler::Trace trace = self.profiler().stop();
        for (const char* name : {"forward-compute", "backward-compute"})
          EXPECT_EQ(std::ranges::count(trace.ranges, name, &ProfiledRange::name), 2 * 4)
              << "microbatches, on both clocks";
        for (const auto& [module, bytes] : trace.saved_bytes) losses.push_back(static_cast<double>(bytes));
      }
      model.observe_layers(nullptr);
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
  EXPECT_EQ(observed, 2 * 2 * 4) << "layers, runs, microbatches";
}

TEST_P(RecordedStepsTest, AbortedStepsHaveNoEffect) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    for (i64 step = 0; step < 6; ++step) losses.push_back(self.step(step).loss);
  };
  for (const i64 aborted_step : {0, 1, 2, 4}) {
    for (const i64 passes : {0, 1, 3, 7}) {
      const auto abort_and_train = [&](LayoutRank& self, test::Numbers& losses) {
        for (i64 step = 0; step < 6; ++step) {
          if (step == aborted_step) {
            test::SignalAfter watch(passes);
            self.state().set_observer(&watch);
            EXPECT_TRUE(self.step(step).is_aborted);
            self.state().set_observer(nullptr);
          }
          losses.push_back(self.step(step).loss);
        }
      };
      EXPECT_EQ(losses(recorded(task()), abort_and_train), losses(task(), train)) << aborted_step << " " << passes;
    }
  }
}

/// The rank that receives the signal does not count the step as part of its warm-up, but the other one does.
TEST_P(RecordedStepsTest, AbortedStepsOfOneRankHaveNoEffect) {
  const auto train = [](const RunTask& task, i64 aborted_step, i64 passes) {
    std::array<test::Numbers, 2> losses;
    run_local_ranks(2, [&](Communicator& ranks, int rank) {
      LayoutRank self(task, {"dp2", {.dp = 2}}, ranks, test::make_nccl_devices);
      for (i64 step = 0; step < 5; ++step) {
        if (step == aborted_step) {
          test::SignalAfter watch(rank == 0 ? passes : 1000);
          self.state().set_observer(&watch);
          EXPECT_TRUE(self.step(step).is_aborted);
          self.state().set_observer(nullptr);
        }
        losses[static_cast<std::size_t>(rank)].push_back(self.step(step).loss);
      }
    });
    EXPECT_EQ(losses[0], losses[1]);
    return losses[0];
  };
  const test::Numbers expected = train(task(), -1, 0);
  for (const i64 aborted_step : {0, 1, 3})
    for (const i64 passes : {0, 1, 3}) EXPECT_EQ(train(recorded(task()), aborted_step, passes), expected);
}

TEST_P(RecordedStepsTest, NumberOfMicrobatchesMayChange) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    for (const i64 microbatches : {1, 1, 1, 2, 4, 1, 4}) {
      RunTask sized = task();
      sized.global_batch_size = 2 * microbatches;
      losses.push_back(self.step_of(sized, std::ssize(losses)).loss);
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
}

TEST_P(RecordedStepsTest, InjectedNanSkipsTheStep) {
  const auto train = [](LayoutRank& self, test::Numbers& losses) {
    for (i64 step = 0; step < 6; ++step) {
      const bool is_faulty = step == 4;
      self.backward(step, is_faulty ? std::numeric_limits<double>::quiet_NaN() : 1);
      self.update(step);
      const StepOutcome outcome = self.state().outcome();
      EXPECT_EQ(outcome.is_skipped, is_faulty);
      losses.push_back(outcome.loss);
    }
  };
  EXPECT_EQ(losses(recorded(task()), train), losses(task(), train));
}

TEST_P(RecordedStepsTest, RepeatedExecutionsAreIdentical) {
  RunTask repeated = recorded(task());
  repeated.compares_executions = true;
  test::expect_same_bits(test::run_layout(repeated, {}, test::make_nccl_devices),
                         test::run_layout(task(), {}, test::make_nccl_devices));
}

TEST_P(RecordedStepsTest, ContinuesFromACheckpointOfEitherKind) {
  const RunLayout layout{"dp2_zero1", {.dp = 2, .zero_stage = 1}};
  for (const RunTask& eager : {task(), task_of(padded_experts(), DType::BF16)}) {
    for (const bool saves_recorded : {true, false}) {
      const test::ScratchFolder folder;
      const RunTask saved = saves_recorded ? recorded(eager) : eager;
      const test::Numbers expected = test::save_and_continue(saved, layout, folder.path(), test::make_nccl_devices);
      for (const bool loads_recorded : {true, false}) {
        const RunTask loaded = loads_recorded ? recorded(eager) : eager;
        EXPECT_EQ(test::load_and_continue(loaded, layout, folder.path(), test::make_nccl_devices), expected)
            << saves_recorded << " " << loads_recorded;
      }
    }
  }
}

}  // namespace
}  // namespace mcpp::recorded_passes_test
