#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/local.h"
#include "parallel/pp/engine.h"
#include "parallel/pp/pass_interleaver.h"
#include "parallel/pp/schedule.h"
#include "tests/support/errors.h"
#include "tests/support/tensors.h"

namespace mcpp::pp_pass_interleaver_test {
namespace {

using testing::ElementsAre;

TEST(PassInterleaverTest, AlternatesAtEveryYield) {
  PassInterleaver interleaver;
  std::vector<std::string> order;
  const auto pass = [&](const char* name, int pieces) {
    return [&order, &interleaver, name, pieces] {
      for (int i = 0; i < pieces; ++i) {
        order.push_back(str(name, i));
        interleaver.yield();
      }
    };
  };
  interleaver.run(pass("f", 2), pass("b", 4));
  EXPECT_THAT(order, ElementsAre("f0", "b0", "f1", "b1", "b2", "b3")) << "the rest of the longer pass runs at once";
  order.clear();
  interleaver.run(pass("f", 3), pass("b", 1));
  EXPECT_THAT(order, ElementsAre("f0", "b0", "f1", "f2"));
  interleaver.yield();  // outside run()
}

struct SetAtEnd {
  bool& is_set;
  ~SetAtEnd() { is_set = true; }
};

TEST(PassInterleaverTest, UnwindsOtherPassWhenOneThrows) {
  for (const bool is_first_bad : {true, false}) {
    PassInterleaver interleaver;
    bool has_unwound = false;
    const auto good = [&] {
      const SetAtEnd guard{has_unwound};
      for (int i = 0; i < 3; ++i) interleaver.yield();
      ADD_FAILURE() << "the pass continued";
    };
    const auto bad = [&] {
      interleaver.yield();
      check_input(false, "planned failure");
    };
    const std::string error =
        test::input_error([&] { is_first_bad ? interleaver.run(bad, good) : interleaver.run(good, bad); });
    EXPECT_EQ(error, "planned failure");
    EXPECT_TRUE(has_unwound);
    int pieces = 0;
    interleaver.run([&] { ++pieces; }, [&] { ++pieces; });
    EXPECT_EQ(pieces, 2) << "usable again";
  }
}

/// Ranges do not include the time of the other pass.
TEST(PassInterleaverTest, RecordsRangesOfBothPassesInPieces) {
  using namespace std::chrono_literals;
  Profiler profiler;
  profiler.enable_timers(Detail::Microbatch);
  profiler.start(nullptr);
  PassInterleaver interleaver(&profiler);
  const auto pass = [&](const char* name, std::chrono::milliseconds time) {
    return [&, name, time] {
      const TimedRange range(&profiler, name, Detail::Microbatch);
      for (int i = 0; i < 2; ++i) {
        std::this_thread::sleep_for(time);
        interleaver.yield();
      }
    };
  };
  {
    const TimedRange outer(&profiler, "outer", Detail::Microbatch);
    interleaver.run(pass("forward", 5ms), pass("backward", 50ms));
  }
  const std::map<std::string, double> seconds = profiler.take_seconds();
  EXPECT_GE(seconds.at("forward"), 0.01);
  EXPECT_GE(seconds.at("backward"), 0.1);
  EXPECT_GE(seconds.at("outer"), seconds.at("forward") + seconds.at("backward"));
  std::vector<std::string> names;
  for (const ProfiledRange& range : profiler.stop().ranges) names.push_back(range.name);
  EXPECT_THAT(names, ElementsAre("forward", "backward", "forward", "backward", "forward", "backward", "outer"));
  EXPECT_TRUE(profiler.open_ranges().empty());
}

/// Stage without pipeline whose passes exchange values with the other ranks between two halves.
class ExchangingStage : public PipelineStage {
 public:
  ExchangingStage(Communicator& exchange, PassInterleaver& interleaver, Device& device)
      : exchange_(exchange), interleaver_(interleaver), device_(device) {}
  void begin_pass(int microbatch) override { log.push_back(str("begin ", microbatch)); }
  Tensor forward(int microbatch, const Tensor&) override { return run("forward", microbatch); }
  Tensor backward(int microbatch, const Tensor&, bool) override { return run("backward", microbatch); }
  Tensor backward_input(int, const Tensor&) override { return {}; }
  void backward_weight(int, bool) override {}
  void reduce_gradients() override {}
  Tensor empty_input() override { return {}; }
  Tensor empty_output_gradient() override { return {}; }

  std::vector<std::string> log;

 protected:
  virtual void while_in_flight(const char* /*pass*/, int /*microbatch*/) {}

 private:
  Tensor run(const char* pass, int microbatch) {
    log.push_back(str(pass, " ", microbatch));
    const int ranks = exchange_.size();
    test::Numbers values(static_cast<std::size_t>(ranks), 10.0 * microbatch + (pass[0] == 'f'));
    const Tensor sent = test::tensor_of(values, {ranks}, DType::F64, device_);
    Tensor received = Tensor::empty({ranks}, DType::F64, device_);
    Work work = exchange_.all_to_all(sent, received);
    while_in_flight(pass, microbatch);
    interleaver_.yield();
    work.wait();
    EXPECT_EQ(test::to_doubles(received), values) << "the ranks exchange values of the same pass";
    log.push_back(str(pass, " ", microbatch, " received"));
    return {};
  }

  Communicator& exchange_;
  PassInterleaver& interleaver_;
  Device& device_;
};

TEST(PassInterleaverTest, EngineRunsPairsOfMicrobatches) {
  CpuDevice device;
  run_local_ranks(2, [&](Communicator& exchange, int) {
    const std::unique_ptr<Communicator> self = make_self_communicator(), also_self = make_self_communicator();
    PassInterleaver interleaver;
    ExchangingStage stage(exchange, interleaver, device);
    PipelineStage* const chunk = &stage;
    run_schedule(lower(combine_passes(one_f_one_b(1, 2))), *self, *also_self, {&chunk, 1},
                 {.interleaver = &interleaver});
    EXPECT_THAT(stage.log, ElementsAre("begin 0", "forward 0", "forward 0 received", "begin 1", "begin 0", "forward 1",
                                       "backward 0", "forward 1 received", "backward 0 received", "begin 1",
                                       "backward 1", "backward 1 received"));
  });
}

class FailingStage final : public ExchangingStage {
 public:
  FailingStage(Communicator& exchange, PassInterleaver& interleaver, Device& device, const char* pass)
      : ExchangingStage(exchange, interleaver, device), pass_(pass) {}

 private:
  void while_in_flight(const char* pass, int microbatch) override {
    check_input(microbatch != 1 || std::string(pass) != pass_, "planned failure");
  }
  std::string pass_;
};

/// The exchanges of the other ranks never complete.
TEST(PassInterleaverTest, RankThatFailsDuringExchangeEndsAllRanks) {
  CpuDevice device;
  for (const char* pass : {"forward", "backward"}) {
    EXPECT_EQ(test::input_error([&] {
                run_local_ranks(3, [&](Communicator& exchange, int rank) {
                  const std::unique_ptr<Communicator> self = make_self_communicator(),
                                                      also_self = make_self_communicator();
                  PassInterleaver interleaver;
                  ExchangingStage good(exchange, interleaver, device);
                  FailingStage bad(exchange, interleaver, device, pass);
                  PipelineStage* const chunk = rank == 1 ? &bad : &good;
                  run_schedule(lower(combine_passes(one_f_one_b(1, 3))), *self, *also_self, {&chunk, 1},
                               {.interleaver = &interleaver});
                });
              }),
              "planned failure")
        << pass;
  }
}

}  // namespace
}  // namespace mcpp::pp_pass_interleaver_test
