#include <gmock/gmock.h>

#include "megatron_cpp/step/state_checks.h"
#include "tests/support/errors.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::LayoutRank;
using test::RunLayout;
using test::RunTask;
using testing::HasSubstr;

constexpr const char* kDamaged = "decoder.final_layernorm.weight";

ModelConfig model() {
  ModelConfig result = test::tiny_gpt2();
  result.num_layers = 2;
  result.num_attention_heads = 2;
  return result;
}

/// Trains one step and then flips one bit of a weight on `damaged`, if there is such a rank. Returns each rank's error.
std::vector<std::string> messages(const RunLayout& layout, int damaged) {
  const RunTask task = test::learnable_task(model());
  std::vector<std::string> result(static_cast<std::size_t>(layout.ranks()));
  run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
    LayoutRank self(task, layout, world);
    self.step(0);
    for (const TrainingState::Chunk& chunk : self.state().chunks()) {
      chunk.memory->visit_weights([&](const Param& param, i64 first, const Tensor& values) {
        if (rank != damaged || param.name != kDamaged || first != 0) return;
        auto* bits = static_cast<u8*>(values.raw());
        bits[0] = static_cast<u8>(bits[0] ^ 4);
      });
    }
    result[static_cast<std::size_t>(rank)] =
        test::error_of([&] { check_weights_across_replicas(self.state(), self.parallel()); });
  });
  return result;
}

TEST(ReplicaCheckTest, AcceptsIdenticalReplicas) {
  for (const RunLayout& layout : {RunLayout{"one", {}}, RunLayout{"dp2", {.dp = 2}},
                                  RunLayout{"tp2_dp2_zero3", {.tp = 2, .dp = 2, .zero_stage = 3}}}) {
    for (const std::string& message : messages(layout, -1)) EXPECT_EQ(message, "") << layout.name;
  }
}

TEST(ReplicaCheckTest, NamesDifferingRankOnAllRanks) {
  for (const std::string& message : messages({"dp3", {.dp = 3}}, 1)) {
    EXPECT_THAT(message, HasSubstr("rank 1 on "));
    EXPECT_THAT(message, HasSubstr(str("holds different weights than its replicas, first in ", kDamaged)));
  }
}

TEST(ReplicaCheckTest, NamesBothRanksOfTwo) {
  for (const std::string& message : messages({"pp2_dp2", {.pp = 2, .dp = 2}}, 3)) {
    EXPECT_THAT(message, HasSubstr("hold different weights"));
    EXPECT_THAT(message, HasSubstr("rank 3 on "));
    EXPECT_THAT(message, HasSubstr("rank 2 on "));
  }
}

TEST(ReplicaCheckTest, AllRanksReportErrorOfOneRank) {
  const RunTask task = test::learnable_task(model());
  for (const RunLayout& layout :
       {RunLayout{"tp2_dp2", {.tp = 2, .dp = 2}}, RunLayout{"dp3_zero3", {.dp = 3, .zero_stage = 3}}}) {
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      LayoutRank self(task, layout, world);
      int calls = 0;
      const auto fingerprint = [&](const Tensor& value) {
        if (rank == 1 && ++calls == 3) throw std::runtime_error("no memory for a copy");
        return checksum_of(value);
      };
      const std::string message =
          test::error_of([&] { check_weights_across_replicas(self.state(), self.parallel(), fingerprint); });
      EXPECT_THAT(message, HasSubstr("rank 1: no memory for a copy")) << layout.name << " rank " << rank;
      check_weights_across_replicas(self.state(), self.parallel());  // no rank was left behind
    });
  }
}

}  // namespace
}  // namespace mcpp
