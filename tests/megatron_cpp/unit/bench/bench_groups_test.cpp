#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/local.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/commands/commands.h"

namespace mcpp {
namespace {

const Layout kSizes{.tp = 2, .pp = 2};

GroupCosts bench_costs(int ranks) {
  GroupCosts found;
  run_local_ranks(ranks, [&](Communicator& world, int rank) {
    const GroupCosts rank_costs = bench_groups(world, kSizes);
    if (rank == ranks - 1) found = rank_costs;
  });
  return found;
}

/// tp, pp twice and the two embedding groups have 2 ranks, model has 4; dp and dp_shard have ranks / 4, and their
/// slices twice that.
TEST(BenchGroupsTest, CountsGroupsAndTheirRanks) {
  for (const int ranks : {8, 64}) {
    const GroupCosts costs = bench_costs(ranks);
    EXPECT_EQ(costs.ranks, ranks);
    EXPECT_EQ(costs.groups, 8);
    EXPECT_EQ(costs.members, 4 * 2 + 4 + ranks / 4 * (1 + 1 + 2));
    EXPECT_GT(costs.make_s, 0);
    EXPECT_GT(costs.first_use_s, 0);
  }
}

TEST(BenchGroupsTest, RejectsImpossibleSizes) {
  const auto refusal = [](const std::vector<std::string>& more) {
    std::vector<std::string> args{"bench", "groups"};
    args.insert(args.end(), more.begin(), more.end());
    const auto self = make_self_communicator();
    Log log;
    try {
      run_program(args, log, {.ranks = *self});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal({"--threads=6"}).find("6"), std::string::npos);
  EXPECT_NE(refusal({"--threads=5000"}).find("at most 4096"), std::string::npos);
  EXPECT_NE(refusal({"--tensor_model_parallel_size=0"}).find("tensor_model_parallel_size"), std::string::npos);
}

}  // namespace
}  // namespace mcpp
