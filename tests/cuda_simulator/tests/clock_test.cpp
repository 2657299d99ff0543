// Step time, pipeline bubble and exposed communication under the virtual clock match the planner's prediction for the
// same layout and hardware. The tests detect overlap that the code does not achieve.
#include "tests/cuda_simulator/clock.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "comm/nccl.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "plan/cost/kernel_times.h"
#include "plan/step/step_time.h"
#include "tensor/cuda_device.h"
#include "tests/cuda_simulator/simulator.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp::test {
namespace {

using cuda_simulator::settings;

/// Costs of the planner's hardware, for operations of any shape.
class HardwareCosts final : public cuda_simulator::CostModel {
 public:
  explicit HardwareCosts(const Hardware& hardware) : hardware_(hardware), collectives_(hardware) {}

  double kernel(double bytes) const override { return hardware_.traffic_seconds(bytes) + hardware_.gap_seconds(); }
  double gemm(const cuda_simulator::GemmCost& p) const override {
    const GemmType type = p.operand_bytes >= 4 ? GemmType::Fp32 : p.operand_bytes == 2 ? GemmType::Bf16 : GemmType::Fp8;
    return gemm_seconds(hardware_, type, {.m = p.m, .n = p.n, .k = p.k, .batch = p.batch}, p.output_bytes);
  }
  /// The speed of backward is the planner's (plan/cost/layer_time.cpp).
  double attention(const cuda_simulator::AttentionCost& a) const override {
    constexpr double kBackwardSpeed = 0.97;
    const double rate = 1e12 * hardware_.device.attention_attained * attention_efficiency(hardware_, a.keys, a.heads);
    return a.flops / (a.is_backward ? kBackwardSpeed * rate : rate) + hardware_.gap_seconds();
  }
  double copy(double bytes, bool is_between_host_and_device) const override {
    return is_between_host_and_device ? bytes / (1e9 * hardware_.host.link_bandwidth)
                                      : hardware_.traffic_seconds(2 * bytes) + hardware_.gap_seconds();
  }
  double collective(cuda_simulator::CollectiveKind kind, double bytes, int ranks) const override {
    const RankGroup group{.ranks = ranks, .stride = 1};
    return kind == cuda_simulator::CollectiveKind::AllReduce ? collectives_.all_reduce(bytes, group)
                                                             : collectives_.all_gather(bytes, group);
  }
  double message(double bytes) const override { return collectives_.message(bytes, 1); }
  double launch() const override { return 2e-6; }

 private:
  const Hardware& hardware_;
  Collectives collectives_;
};

/// Measurements of a step: its seconds, and the fractions that ranks wait for other stages and for other communication.
struct Figures {
  double seconds = 0, bubble = 0, exposed = 0;
};

/// Allowed differences between clock and planner: of the step time, relative; of the shares, absolute.
struct Tolerance {
  double seconds = 0.05, share = 0.03;
};

RankDevices make_devices(Communicator& ranks) {
  std::unique_ptr<Device> gpu = make_gpu(ranks.rank());
  auto world = make_nccl_communicator(ranks.split(0, ranks.rank()), *gpu);
  return {std::move(gpu), std::move(world)};
}

/// One model in several layouts on up to eight H100 of a server. All devices are equally fast and do not slow down
/// during communication, because the clock does not model such effects.
class VirtualClockTest : public testing::Test {
 protected:
  VirtualClockTest() : saved_(settings()), hardware_(h100()), costs_(hardware_) {
    settings().memory = std::size_t{12} << 30;
    settings().multiprocessors = static_cast<int>(hardware_.device.cores);
    settings().computes = settings().checks_races = false;
    settings().blocks = 16;
    cuda_simulator::set_cost_model(&costs_);
  }
  ~VirtualClockTest() override {
    cuda_simulator::set_cost_model(nullptr);
    settings() = saved_;
  }

  static Hardware h100() {
    Hardware hardware =
        load_hardware("h100_sxm", Path(source_folder()) / "configs" / "hardware").for_ranks(HardwareKind::kAnyRanks);
    hardware.device.speed_spread = 0;
    hardware.device.communication_cores = 0;
    hardware.host.nvme_bandwidth = 0;  // tokens are in memory
    return hardware;
  }

  static ModelConfig model() {
    ModelConfig config = tiny_llama();
    config.num_layers = 4;
    config.hidden_size = 1024;
    config.ffn_hidden_size = 4096;
    config.num_attention_heads = config.num_query_groups = 8;
    config.rotary_percent = 1;
    config.seq_length = 2048;
    config.vocab_size = 4096;
    config.init_method_std = 0.02;
    return config;
  }
  /// With data parallelism there is one microbatch, whose backward pass must hide the reduction of gradients.
  static RunTask task(const RunLayout& layout) {
    RunTask task = learnable_task(model(), DType::BF16);
    task.micro_batch_size = 2;
    task.global_batch_size = layout.dp > 1 ? 2 * layout.dp : layout.pp > 1 ? 16 : 8;
    task.steps = 3;  // the first one serializes microbatches, and waits may be logged with the next step
    return task;
  }

  Figures run(const RunLayout& layout) { return run(task(layout), layout); }
  /// Returns the figures of the last step, as the mean over the ranks.
  Figures run(const RunTask& task, const RunLayout& layout) {
    Figures mean;
    std::mutex mutex;
    run_local_ranks(layout.ranks(), [&](Communicator& ranks, int) {
      LayoutRank self(task, layout, ranks, make_devices);
      for (const auto& [name, meter] : self.parallel().meters)  // as initialize() does
        if (meter->ranks.size() > 1) meter->waits = make_device_wait_timer(self.device());
      RankTimings begin, end;
      for (i64 step = 0; step < task.steps; ++step) {
        begin = timings(self);
        const StepOutcome outcome = self.step(step);
        EXPECT_FALSE(outcome.is_skipped) << "a skipped step does not update the weights, which takes time";
        end = timings(self);
      }
      const double seconds = end.clock - begin.clock, n = layout.ranks();
      const std::lock_guard lock(mutex);
      mean.seconds += seconds / n;
      mean.bubble += (end.pipeline - begin.pipeline) / seconds / n;
      mean.exposed += (end.communication - begin.communication) / seconds / n;
    });
    return mean;
  }
  /// Returns the program's measurements, with the virtual clock of this rank's host.
  static RankTimings timings(LayoutRank& rank) {
    synchronize(rank.device());
    RankTimings spent = rank_timings(rank.state(), rank.parallel());
    spent.clock = cuda_simulator::host_seconds();
    return spent;
  }

  Figures predict(const RunLayout& layout) const {
    const RunTask task = VirtualClockTest::task(layout);
    const Workload work{.model = task.model, .global_batch_size = task.global_batch_size, .base = layout};
    const KernelTraits program;
    Layout planned = layout;
    planned.micro_batch_size = task.micro_batch_size;
    const PredictionInput job{hardware_, program, work, planned};
    Figures mean;
    for (const StepTime& rank : step_time_by_rank(job)) {
      const double n = static_cast<double>(layout.pp);
      mean.seconds += rank.seconds / n;
      mean.bubble += (rank.bubble + rank.messages) / rank.seconds / n;
      mean.exposed += (rank.work.communication() + rank.data_parallel) / rank.seconds / n;
    }
    return mean;
  }

  Figures expect_as_predicted(const RunLayout& layout, const Tolerance& tolerance = {}) {
    const Figures clock = run(layout), plan = predict(layout);
    std::printf(
        "%-14s step %.3f ms, predicted %.3f ms; bubble %.1f%%, predicted %.1f%%; exposed communication %.1f%%, "
        "predicted %.1f%%\n",
        layout.name, 1e3 * clock.seconds, 1e3 * plan.seconds, 100 * clock.bubble, 100 * plan.bubble,
        100 * clock.exposed, 100 * plan.exposed);
    EXPECT_NEAR(clock.seconds / plan.seconds, 1, tolerance.seconds);
    EXPECT_NEAR(clock.bubble, plan.bubble, tolerance.share);
    EXPECT_NEAR(clock.exposed, plan.exposed, tolerance.share);
    return clock;
  }

 private:
  const cuda_simulator::Settings saved_;

 protected:
  const Hardware hardware_;
  const HardwareCosts costs_;
};

constexpr i64 kBucket = 4'000'000;

TEST_F(VirtualClockTest, OneRankMatchesPrediction) {
  expect_as_predicted({{.bucket_size = kBucket}});
}
TEST_F(VirtualClockTest, DataParallelMatchesPrediction) {
  const RunLayout layout{"dp 2", {.dp = 2, .bucket_size = kBucket}};
  const Figures overlapped = expect_as_predicted(layout);
  RunLayout serial = layout;
  serial.overlap_grad_reduce = serial.overlap_param_gather = false;
  const Figures exposed = run(serial);
  EXPECT_GT(exposed.exposed, overlapped.exposed + 0.05) << "a reduction that does not overlap is visible";
  EXPECT_GT(exposed.seconds, overlapped.seconds);
}
TEST_F(VirtualClockTest, TensorParallelMatchesPrediction) {
  // The program overlaps two gathers of backward with GEMMs to a degree that depends on the order of its threads.
  expect_as_predicted({"tp 2", {.tp = 2, .sequence_parallel = true, .bucket_size = kBucket}},
                      {.seconds = 0.12, .share = 0.13});
}
TEST_F(VirtualClockTest, OneFOneBMatchesPrediction) {
  expect_as_predicted({"pp 2", {.pp = 2, .bucket_size = kBucket}});
}
TEST_F(VirtualClockTest, InterleavedMatchesPrediction) {
  expect_as_predicted(
      {"pp 2, 2 chunks", {.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .bucket_size = kBucket}});
}

/// Returns a task with a model whose kernels are short. The clock cannot show that graphs save time, because in graphs
/// too it charges the gap between kernels, which is longer than a launch.
RunTask launch_bound_task(i64 microbatches, i64 graph_warmup_steps) {
  ModelConfig model = tiny_llama();
  model.num_layers = 4;
  model.hidden_size = 128;
  model.ffn_hidden_size = 256;
  model.num_attention_heads = model.num_query_groups = 2;
  model.rotary_percent = 1;
  model.seq_length = 128;
  model.vocab_size = 512;
  RunTask task = learnable_task(model, DType::BF16);
  task.micro_batch_size = 1;
  task.global_batch_size = microbatches;
  task.graph_warmup_steps = graph_warmup_steps;
  task.steps = 5;  // all passes are recorded before the last step
  return task;
}

/// Returns the calls of the host in the last step.
std::map<std::string, std::uint64_t> calls_of_step(const RunTask& task) {
  std::map<std::string, std::uint64_t> calls;
  run_local_ranks(1, [&](Communicator& ranks, int) {
    LayoutRank self(task, {}, ranks, make_devices);
    for (i64 step = 0; step < task.steps; ++step) {
      cuda_simulator::host_calls().clear();
      self.step(step);
    }
    calls = cuda_simulator::host_calls();
  });
  return calls;
}

TEST_F(VirtualClockTest, LaunchesOneGraphPerMicrobatch) {
  auto four = calls_of_step(launch_bound_task(4, 1)), eight = calls_of_step(launch_bound_task(8, 1)),
       eager = calls_of_step(launch_bound_task(8, 0));
  EXPECT_EQ(four["cudaGraphLaunch"], 4U);
  EXPECT_EQ(eight["cudaGraphLaunch"], 8U);
  for (const char* call : {"kernel", "cublasLtMatmul", "cudnnBackendExecute", "cudaMemsetAsync"})
    EXPECT_EQ(four[call], eight[call]) << call << ": only the optimizer calls it";
  EXPECT_EQ(eight["cublasLtMatmul"], 0U);
  EXPECT_EQ(eager["cudaGraphLaunch"], 0U);
  EXPECT_GT(eager["kernel"], eight["kernel"] + 8 * 50);
  std::printf("calls of the host per microbatch: %.0f kernels and %.0f GEMMs; with graphs one launch\n",
              static_cast<double>(eager["kernel"] - eight["kernel"]) / 8,
              static_cast<double>(eager["cublasLtMatmul"]) / 8);
}

}  // namespace
}  // namespace mcpp::test
