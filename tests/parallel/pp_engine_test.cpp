#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "comm/local.h"
#include "comm/meta.h"
#include "parallel/pp/engine.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/simulate.h"
#include "tests/support/errors.h"
#include "tests/support/fakes/fake_wait_timer.h"
#include "tests/support/tensors.h"

namespace mcpp::pp_engine_test {
namespace {

using testing::ElementsAre;

constexpr i64 kWidth = 3;

/// Stage computing y = w x + b elementwise. The first stage reads its microbatch, the last has the loss sum(y^2) / 2.
class ToyStage : public PipelineStage {
 public:
  ToyStage(int stage, int stages, Device& device)
      : is_first(stage == 0),
        is_last(stage == stages - 1),
        device_(device),
        w_(test::normals(kWidth, 100 + static_cast<u64>(stage))),
        b_(test::normals(kWidth, 200 + static_cast<u64>(stage))) {}

  Tensor forward(int microbatch, const Tensor& x) override {
    EXPECT_EQ(x.defined(), !is_first);
    const test::Numbers in = is_first ? test::normals(kWidth, 300 + static_cast<u64>(microbatch)) : test::to_doubles(x);
    test::Numbers y(kWidth);
    for (std::size_t i = 0; i < kWidth; ++i) y[i] = w_[i] * in[i] + b_[i];
    inputs_[microbatch] = in;
    outputs.push_back(y);
    if (!is_last) return tensor(y);
    output_grads_[microbatch] = y;
    return {};
  }
  Tensor backward(int microbatch, const Tensor& dy, bool last_one) override {
    const Tensor dx = backward_input(microbatch, dy);
    backward_weight(microbatch, last_one);
    return dx;
  }
  Tensor backward_input(int microbatch, const Tensor& dy) override {
    EXPECT_EQ(dy.defined(), !is_last);
    if (!is_last) output_grads_[microbatch] = test::to_doubles(dy);
    if (is_first) return {};
    test::Numbers dx = output_grads_.at(microbatch);
    for (std::size_t i = 0; i < kWidth; ++i) dx[i] *= w_[i];
    return tensor(dx);
  }
  void backward_weight(int microbatch, bool last_one) override {
    EXPECT_FALSE(is_complete);
    is_complete = last_one;
    const test::Numbers &x = inputs_.at(microbatch), &dy = output_grads_.at(microbatch);
    for (std::size_t i = 0; i < kWidth; ++i) {
      grads[i] += dy[i] * x[i];
      grads[kWidth + i] += dy[i];
    }
    inputs_.erase(microbatch);
    output_grads_.erase(microbatch);
  }
  void reduce_gradients() override {
    EXPECT_TRUE(is_complete);
    ++reductions;
  }
  Tensor empty_input() override { return test::garbage({kWidth}, DType::F64, device_); }
  Tensor empty_output_gradient() override { return empty_input(); }

  const bool is_first, is_last;
  test::Numbers grads = test::Numbers(2 * kWidth);  ///< of w and b
  std::vector<test::Numbers> outputs;               ///< in the order of computation
  bool is_complete = false;                         ///< the last weight gradient was announced
  int reductions = 0;

 private:
  Tensor tensor(const test::Numbers& x) const { return test::tensor_of(x, {kWidth}, DType::F64, device_); }

  Device& device_;
  test::Numbers w_, b_;
  std::map<int, test::Numbers> inputs_, output_grads_;  // by microbatch
};

using Stages = std::vector<std::unique_ptr<ToyStage>>;

Stages make_stages(int count, Device& device) {
  Stages stages;
  for (int s = 0; s < count; ++s) stages.push_back(std::make_unique<ToyStage>(s, count, device));
  return stages;
}

/// Runs the microbatches one by one forward and backward through all stages, without the engine.
Stages reference(int stage_count, int microbatches, Device& device, bool forward_only = false) {
  Stages stages = make_stages(stage_count, device);
  for (int i = 0; i < microbatches; ++i) {
    Tensor x;
    for (const auto& stage : stages) x = stage->forward(i, x);
    if (forward_only) continue;
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
      x = (*stage)->backward(i, x, i + 1 == microbatches);
  }
  return stages;
}

/// Returns the stages of all ranks after threads ran the schedule.
Stages run_on_threads(const Schedule& schedule, Device& device, bool serializes_receives = false) {
  const Schedule lowered = lower(schedule);
  simulate(lowered);
  Stages stages = make_stages(lowered.stages(), device);
  run_local_ranks(lowered.ranks, [&](Communicator& world, int rank) {
    const std::unique_ptr<Communicator> backward_channel = world.split(0, rank);
    std::vector<PipelineStage*> chunks;
    for (int c = 0; c < lowered.chunks_per_rank; ++c) chunks.push_back(stages[lowered.stage_of(rank, c)].get());
    test::FakeWaitTimer waits;
    PassInterleaver interleaver;
    const PipelineTimes times = run_schedule(lowered, world, *backward_channel, chunks,
                                             {.wait_timer = serializes_receives ? &waits : nullptr,
                                              .serializes_receives = serializes_receives,
                                              .interleaver = &interleaver});
    EXPECT_GE(times.waiting, 0);
    EXPECT_GE(times.total, times.waiting);
  });
  return stages;
}

void expect_same(const Stages& got, const Stages& want, int reductions) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t s = 0; s < got.size(); ++s) {
    EXPECT_EQ(got[s]->outputs, want[s]->outputs) << "stage " << s;
    EXPECT_EQ(got[s]->grads, want[s]->grads) << "stage " << s;
    EXPECT_EQ(got[s]->reductions, reductions) << "stage " << s;
  }
}

class PipelineScheduleRunTest : public testing::TestWithParam<std::pair<ScheduleKind, int>> {};

TEST_P(PipelineScheduleRunTest, MatchesSequentialMicrobatchesBitwise) {
  CpuDevice device;
  const auto [kind, chunks] = GetParam();
  int runs = 0;
  for (const int ranks : {1, 2, 3, 4})
    for (const int microbatches : {1, 2, 3, 4, 8}) {
      if (!schedule_conflicts(kind, ranks, chunks, microbatches).empty()) continue;
      SCOPED_TRACE(str(ranks, " ranks, ", microbatches, " microbatches"));
      const Schedule schedule = make_schedule(kind, ranks, microbatches, chunks);
      for (const bool serializes_receives : {false, true}) {
        for (const int in_turn : {0, 2, 100})
          expect_same(run_on_threads(serialize_first_microbatches(schedule, in_turn), device, serializes_receives),
                      reference(schedule.stages(), microbatches, device), 1);
      }
      if (can_combine_passes(kind)) {
        for (const int in_turn : {0, 2})
          expect_same(run_on_threads(serialize_first_microbatches(combine_passes(schedule), in_turn), device),
                      reference(schedule.stages(), microbatches, device), 1);
        expect_same(run_on_threads(combine_passes(schedule), device),
                    reference(schedule.stages(), microbatches, device), 1);
      }
      expect_same(run_on_threads(forward_schedule(schedule), device),
                  reference(schedule.stages(), microbatches, device, /*forward_only=*/true), 0);
      ++runs;
    }
  EXPECT_GE(runs, kind == ScheduleKind::Interleaved ? 6 : 20);
}

std::string name_of_case(const testing::TestParamInfo<std::pair<ScheduleKind, int>>& info) {
  static constexpr std::array kNames{"GPipe", "OneFOneB", "Interleaved", "ZbH1", "ZbV", "DualPipeV"};
  return str(kNames[static_cast<std::size_t>(info.param.first)], info.param.second);
}
INSTANTIATE_TEST_SUITE_P(All, PipelineScheduleRunTest,
                         testing::Values(std::pair(ScheduleKind::GPipe, 1), std::pair(ScheduleKind::OneFOneB, 1),
                                         std::pair(ScheduleKind::Interleaved, 2),
                                         std::pair(ScheduleKind::Interleaved, 3), std::pair(ScheduleKind::ZbH1, 1),
                                         std::pair(ScheduleKind::ZbV, 2), std::pair(ScheduleKind::DualPipeV, 2)),
                         name_of_case);

class ThrowingStage final : public ToyStage {
 public:
  using ToyStage::ToyStage;
  Tensor backward(int microbatch, const Tensor& dy, bool last_one) override {
    check_input(microbatch != 1, "planned failure");
    return ToyStage::backward(microbatch, dy, last_one);
  }
};

TEST(PipelineEngineTest, ThrowingStageEndsAllRanks) {
  CpuDevice device;
  const Schedule lowered = lower(one_f_one_b(3, 5));
  EXPECT_EQ(test::input_error([&] {
              run_local_ranks(3, [&](Communicator& world, int rank) {
                const std::unique_ptr<Communicator> backward_channel = world.split(0, rank);
                ToyStage good(rank, 3, device);
                ThrowingStage bad(rank, 3, device);
                PipelineStage* const chunk = rank == 1 ? &bad : &good;
                run_schedule(lowered, world, *backward_channel, {&chunk, 1});
              });
            }),
            "planned failure");
}

/// Stage whose input has stage + 1 elements. Its results hold the stage and the microbatch.
class WideningStage final : public PipelineStage {
 public:
  WideningStage(int stage, Device& device) : stage_(stage), device_(device) {}
  Tensor forward(int microbatch, const Tensor& x) override {
    if (stage_ > 0) expect_message(x, stage_ - 1, microbatch, empty_input());
    return message(microbatch, empty_output_gradient());
  }
  Tensor backward(int microbatch, const Tensor& dy, bool) override {
    if (dy.defined()) expect_message(dy, stage_ + 1, microbatch, empty_output_gradient());
    return message(microbatch, empty_input());
  }
  Tensor backward_input(int microbatch, const Tensor& dy) override { return backward(microbatch, dy, false); }
  void backward_weight(int, bool) override {}
  void reduce_gradients() override {}
  Tensor empty_input() override { return test::garbage({stage_ + 1}, DType::F64, device_); }
  Tensor empty_output_gradient() override { return test::garbage({stage_ + 2}, DType::F64, device_); }
  int received = 0;

 private:
  static double value(int stage, int microbatch) { return 100 * stage + microbatch; }
  Tensor message(int microbatch, const Tensor& like) const {
    const test::Numbers values(static_cast<std::size_t>(like.numel()), value(stage_, microbatch));
    return test::tensor_of(values, like.shape(), DType::F64, device_);
  }
  void expect_message(const Tensor& got, int sender, int microbatch, const Tensor& like) {
    EXPECT_EQ(got.shape(), like.shape());
    EXPECT_THAT(test::to_doubles(got), testing::Each(value(sender, microbatch)));
    ++received;
  }

  int stage_;
  Device& device_;
};

TEST(PipelineEngineTest, PassesMessagesOfDifferentSizes) {
  CpuDevice device;
  for (const Schedule& schedule : {one_f_one_b(3, 4), interleaved_1f1b(2, 4, 2), zb_v(2, 4)}) {
    const Schedule lowered = lower(schedule);
    run_local_ranks(lowered.ranks, [&](Communicator& world, int rank) {
      const std::unique_ptr<Communicator> backward_channel = world.split(0, rank);
      std::vector<WideningStage> stages;
      std::vector<PipelineStage*> chunks;
      for (int c = 0; c < lowered.chunks_per_rank; ++c) stages.emplace_back(lowered.stage_of(rank, c), device);
      for (WideningStage& stage : stages) chunks.push_back(&stage);
      run_schedule(lowered, world, *backward_channel, chunks);
      for (int c = 0; c < lowered.chunks_per_rank; ++c) {
        const int stage = lowered.stage_of(rank, c), ends = (stage == 0) + (stage + 1 == lowered.stages());
        EXPECT_EQ(stages[static_cast<std::size_t>(c)].received, 4 * (2 - ends)) << "stage " << stage;
      }
    });
  }
}

class SlowStage final : public ToyStage {
 public:
  using ToyStage::ToyStage;
  Tensor forward(int microbatch, const Tensor& x) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return ToyStage::forward(microbatch, x);
  }
};

TEST(PipelineEngineTest, CountsTimeUntilMessagesArriveAsWaiting) {
  CpuDevice device;
  const Schedule lowered = lower(one_f_one_b(2, 1));
  run_local_ranks(2, [&](Communicator& world, int rank) {
    const std::unique_ptr<Communicator> backward_channel = world.split(0, rank);
    SlowStage slow(rank, 2, device);
    PipelineStage* const chunk = &slow;
    world.barrier();
    const PipelineTimes times = run_schedule(lowered, world, *backward_channel, {&chunk, 1});
    // Each rank computes for 200 ms and waits equally long for the other one, minus delays on a busy host.
    EXPECT_GE(times.total, 0.3);
    EXPECT_GE(times.waiting, 0.1);
    EXPECT_GE(times.total - times.waiting, 0.199);
  });
}

TEST(PipelineEngineTest, CountsWaitTimeOfComputeDevice) {
  CpuDevice device;
  const Schedule lowered = lower(one_f_one_b(2, 1));
  run_local_ranks(2, [&](Communicator& world, int rank) {
    const std::unique_ptr<Communicator> backward_channel = world.split(0, rank);
    test::FakeWaitTimer waits;
    const auto waited = [&] {
      ToyStage stage(rank, 2, device);
      PipelineStage* const chunk = &stage;
      return run_schedule(lowered, world, *backward_channel, {&chunk, 1}, {.wait_timer = &waits}).waiting;
    };
    EXPECT_EQ(waited(), 0) << "not what the host waited";
    EXPECT_EQ(waits.count(), 1) << "for the message of the other rank";
    waits.end_all(7);
    EXPECT_EQ(waited(), 7);
    EXPECT_FALSE(waits.is_open());
  });
}

/// Records which operations are started and awaited.
class RecordingChannel final : public MetaCommunicator {
 public:
  RecordingChannel(std::string name, std::vector<std::string>& log)
      : MetaCommunicator(2), name_(std::move(name)), log_(log) {}

  Work send(const Tensor&, int) override { return note("send " + name_); }
  Work recv(Tensor&, int) override {
    note("post " + name_);
    return Work([this] { note("wait " + name_); });
  }

 private:
  Work note(std::string what) {
    log_.push_back(std::move(what));
    return {};
  }
  std::string name_;
  std::vector<std::string>& log_;
};

class RecordingStage final : public PipelineStage {
 public:
  RecordingStage(Device& device, std::vector<std::string>& log) : device_(device), log_(log) {}
  Tensor forward(int microbatch, const Tensor&) override { return note("forward", microbatch); }
  Tensor backward(int microbatch, const Tensor&, bool) override { return note("backward", microbatch); }
  Tensor backward_input(int microbatch, const Tensor&) override { return note("input", microbatch); }
  void backward_weight(int microbatch, bool) override { note("weight", microbatch); }
  void reduce_gradients() override { log_.push_back("reduce"); }
  Tensor empty_input() override { return Tensor::empty({1}, DType::F64, device_); }
  Tensor empty_output_gradient() override { return empty_input(); }

 private:
  Tensor note(const char* what, int microbatch) {
    log_.push_back(str(what, " ", microbatch));
    return empty_input();
  }
  Device& device_;
  std::vector<std::string>& log_;
};

TEST(PipelineEngineTest, StartsReceivesBeforeComputationThatHidesThem) {
  CpuDevice device;
  std::vector<std::string> log;
  RecordingChannel activations("x", log), gradients("dy", log);
  RecordingStage stage(device, log);
  PipelineStage* const chunk = &stage;
  run_schedule(lower(one_f_one_b(2, 3)), activations, gradients, {&chunk, 1});
  EXPECT_THAT(
      log, ElementsAre("forward 0", "send x", "post dy", "forward 1", "send x", "wait dy", "backward 0", "post dy",
                       "forward 2", "send x", "wait dy", "post dy", "backward 1", "wait dy", "backward 2", "reduce"));
}

TEST(PipelineEngineTest, HasNoReceiveInFlightDuringComputeWhenSerialized) {
  CpuDevice device;
  std::vector<std::string> log;
  RecordingChannel activations("x", log), gradients("dy", log);
  RecordingStage stage(device, log);
  PipelineStage* const chunk = &stage;
  test::FakeWaitTimer waits;
  run_schedule(lower(one_f_one_b(2, 3)), activations, gradients, {&chunk, 1},
               {.wait_timer = &waits, .serializes_receives = true});
  EXPECT_THAT(log,
              ElementsAre("forward 0", "send x", "forward 1", "send x", "post dy", "wait dy", "backward 0", "forward 2",
                          "send x", "post dy", "wait dy", "backward 1", "post dy", "wait dy", "backward 2", "reduce"));
  EXPECT_EQ(waits.host_count(), 3) << "each message";
}

}  // namespace
}  // namespace mcpp::pp_engine_test
