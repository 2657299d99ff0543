// Token dispatch with one row per token and node, compared with AllToAllDispatcher and float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <set>

#include "base/philox.h"
#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/ep/assumed_choices.h"
#include "parallel/ep/exchange_nodes.h"
#include "parallel/ep/hierarchical_dispatcher.h"
#include "tests/support/expert_placement.h"
#include "tests/support/tensors.h"

namespace mcpp::ep_hierarchical_test {
namespace {

using test::integers_of;
using test::Numbers;
using test::relative_distance;
using test::to_doubles;

TEST(ExchangeNodesTest, RelaysHaveIndexOfSender) {
  const std::vector<int> hosts{4, 4, 9, 9, 9};
  const ExchangeNodes nodes(hosts);
  EXPECT_EQ(nodes.count(), 2);
  EXPECT_EQ(nodes.members(1), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(nodes.relay(1, 0), 1) << "its own node";
  EXPECT_EQ(nodes.relay(1, 1), 3);
  EXPECT_EQ(nodes.relay(3, 0), 1);
  EXPECT_EQ(nodes.relay(4, 0), 0) << "the node has fewer ranks";
  EXPECT_EQ(nodes.sources(0), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(nodes.sources(4), (std::vector<int>{4}));
  EXPECT_EQ(ExchangeNodes::consecutive(5, 2).members(2), (std::vector<int>{4}));
}

/// Input of a random exchange: T tokens that choose kTopk of kExperts experts.
constexpr i64 kExperts = 16, kTopk = 6, kTokens = 40, kWidth = 64;

std::vector<i32> random_choices(int rank) {
  std::vector<i32> experts;
  for (i64 t = 0; t < kTokens; ++t) {
    std::vector<std::pair<u64, i32>> keys;
    for (i32 e = 0; e < kExperts; ++e)
      keys.emplace_back(philox_key(static_cast<u64>(rank), "experts", static_cast<u64>(t * kExperts + e)), e);
    std::ranges::sort(keys);
    for (i64 j = 0; j < kTopk; ++j)
      experts.push_back(t % 7 == 3 && j > 2 ? -1 : keys[static_cast<std::size_t>(j)].second);
  }
  return experts;
}

struct NodesCase {
  const char* name;
  std::vector<int> nodes;  ///< of each rank
  int tp = 1;

  int ranks() const { return static_cast<int>(nodes.size()); }
  int ep() const { return ranks() / tp; }
};
class HierarchicalDispatcherTest : public testing::TestWithParam<NodesCase> {};
INSTANTIATE_TEST_SUITE_P(Nodes, HierarchicalDispatcherTest,
                         testing::Values(NodesCase{"two_of_two", {0, 0, 1, 1}}, NodesCase{"one_of_four", {0, 0, 0, 0}},
                                         NodesCase{"four_of_one", {0, 1, 2, 3}},
                                         NodesCase{"two_of_four", {0, 0, 0, 0, 1, 1, 1, 1}},
                                         NodesCase{"four_of_two", {0, 1, 2, 3, 3, 2, 1, 0}},
                                         NodesCase{"five_and_three", {0, 0, 0, 0, 0, 1, 1, 1}, 1},
                                         NodesCase{"experts_in_node", {0, 0, 0, 0, 1, 1, 1, 1}, 2},
                                         NodesCase{"experts_across_nodes", {0, 1, 0, 1, 0, 1, 0, 1}, 2}),
                         [](const auto& p) { return p.param.name; });

/// Calls f(world, rank, placement) on each rank of a case.
void on_each_rank(const NodesCase& c, const std::function<void(Communicator&, int, const ExpertParallel&)>& f) {
  run_local_ranks(c.ranks(), [&](Communicator& world, int rank) {
    const test::ExpertPlacement placed(world, TokenDispatcherType::Hierarchical, c.tp, c.nodes);
    f(world, rank, placed.parallel);
  });
}

ExpertParallel with_all_to_all(ExpertParallel parallel) {
  parallel.dispatcher = TokenDispatcherType::AllToAll;
  return parallel;
}

/// All that a dispatcher computes for random choices.
struct Exchanged {
  Tensor rows, out, d_rows, d_weights, d_tokens;
};

/// Expert e multiplies by e + 1, divided by the ranks that share it.
Tensor multiply_by_experts(const Tensor& x, std::span<const i64> rows, const ExpertParallel& parallel) {
  Numbers values = to_doubles(x);
  std::size_t at = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const auto expert = kExperts / parallel.ep * parallel.ep_rank + static_cast<i64>(e);
    for (i64 i = 0; i < rows[e] * kWidth; ++i) values[at++] *= static_cast<double>(expert + 1) / parallel.tp;
  }
  Tensor y = Tensor::like(x);
  test::set_values(y, values);
  return y;
}

Exchanged exchange(const ExpertParallel& parallel, int rank, DType dtype, Device& device) {
  const auto random = [&](i64 width, DType type, u64 seed) {
    return test::random_tensor({kTokens, width}, type, device, seed + static_cast<u64>(rank), 1, 0);
  };
  const Tensor tokens = random(kWidth, dtype, 100), d_out = random(kWidth, dtype, 200),
               weights = random(kTopk, accumulate_dtype(dtype), 300);
  const ExpertChoice choice =
      exchange_choices(integers_of(random_choices(rank), device).view({kTokens, kTopk}), kExperts, parallel);
  const auto dispatcher = make_token_dispatcher(choice, parallel);
  Exchanged result;
  result.rows = dispatcher->dispatch(tokens, [] {});
  const auto combined =
      dispatcher->combine(multiply_by_experts(result.rows, dispatcher->rows(), parallel), weights, [] {});
  result.out = combined.out;
  const auto gradients = dispatcher->combine_backward(d_out, combined.saved, combined.weights, {}, [] {});
  result.d_rows = gradients.rows;
  result.d_weights = gradients.weights;
  result.d_tokens =
      dispatcher->dispatch_backward(multiply_by_experts(result.d_rows, dispatcher->rows(), parallel), [] {});
  return result;
}

/// Experts receive the same rows in the same order as with AllToAll, and the same gradients; sums differ by rounding.
TEST_P(HierarchicalDispatcherTest, MatchesAllToAll) {
  on_each_rank(GetParam(), [](Communicator&, int rank, const ExpertParallel& by_node) {
    CpuDevice device;
    for (const DType dtype : {DType::F64, DType::F32, DType::BF16}) {
      const Exchanged expected = exchange(with_all_to_all(by_node), rank, dtype, device),
                      found = exchange(by_node, rank, dtype, device);
      EXPECT_TRUE(test::same_bits(found.rows, expected.rows));
      EXPECT_TRUE(test::same_bits(found.d_rows, expected.d_rows));
      if (GetParam().tp == 1) {
        EXPECT_TRUE(test::same_bits(found.d_weights, expected.d_weights));
      }
      const double tolerance = dtype == DType::F64 ? 1e-14 : dtype == DType::F32 ? 1e-6 : 1e-2;
      for (const auto& [a, b] : {std::pair(found.out, expected.out), std::pair(found.d_tokens, expected.d_tokens),
                                 std::pair(found.d_weights, expected.d_weights)})
        EXPECT_LE(relative_distance(to_doubles(a), to_doubles(b)), tolerance) << name_of(dtype);
    }
  });
}

/// Each hop rounds once. Errors of sums in bf16 are at most twice those of AllToAll, measured against float64.
TEST_P(HierarchicalDispatcherTest, RoundsOncePerHop) {
  on_each_rank(GetParam(), [](Communicator&, int rank, const ExpertParallel& by_node) {
    CpuDevice device;
    const auto copy_in_fp64 = [&](const Tensor& x) {
      Tensor y = Tensor::empty(x.shape(), DType::F64, device);
      test::set_values(y, to_doubles(x));
      return y;
    };
    const Tensor tokens = test::random_tensor({kTokens, kWidth}, DType::BF16, device, 9, 1, 0),
                 weights = test::random_tensor({kTokens, kTopk}, DType::F32, device, 8, 1, 0);
    const auto combined = [&](const ExpertParallel& parallel, bool in_fp64) {
      const ExpertChoice choice =
          exchange_choices(integers_of(random_choices(rank), device).view({kTokens, kTopk}), kExperts, parallel);
      const auto dispatcher = make_token_dispatcher(choice, parallel);
      const Tensor rows = dispatcher->dispatch(in_fp64 ? copy_in_fp64(tokens) : tokens, [] {});
      return to_doubles(dispatcher->combine(rows, in_fp64 ? copy_in_fp64(weights) : weights, [] {}).out);
    };
    const ExpertParallel direct = with_all_to_all(by_node);
    const Numbers exact = combined(direct, true);
    const double error = relative_distance(combined(direct, false), exact),
                 by_node_error = relative_distance(combined(by_node, false), exact);
    EXPECT_GT(error, 0);
    EXPECT_LE(by_node_error, 2 * error);
    if (rank == 0)
      std::printf("error %.2e, hierarchical %.2e, ratio %.2f\n", error, by_node_error, by_node_error / error);
  });
}

/// Returns the number of pairs of a token and another node that has any of its experts, for one rank.
i64 count_tokens_for_other_nodes(const NodesCase& c, int rank) {
  const std::vector<i32> experts = random_choices(rank);
  const i64 local = kExperts / c.ep();
  i64 pairs = 0;
  for (i64 t = 0; t < kTokens; ++t) {
    std::set<int> nodes;
    for (i64 j = 0; j < kTopk; ++j) {
      const i32 expert = experts[static_cast<std::size_t>(t * kTopk + j)];
      for (int slice = 0; expert >= 0 && slice < c.tp; ++slice)
        nodes.insert(c.nodes[static_cast<std::size_t>(expert / local * c.tp + slice)]);
    }
    nodes.erase(c.nodes[static_cast<std::size_t>(rank)]);
    pairs += std::ssize(nodes);
  }
  return pairs;
}

/// Between nodes, dispatch sends one row per token and node, and its backward pass returns one; combine also sends the
/// weights of each token, and its backward pass returns their gradients.
TEST_P(HierarchicalDispatcherTest, SendsTokenOncePerNode) {
  on_each_rank(GetParam(), [](Communicator& world, int rank, ExpertParallel by_node) {
    CpuDevice device;
    const auto meter = std::make_shared<CommMeter>();
    const auto metered = make_metered(world.split(0, rank), meter);
    by_node.exchange = metered.get();
    exchange(by_node, rank, DType::BF16, device);
    Tensor rows = Tensor::empty({1}, DType::F64, device);
    rows.data<double>()[0] = static_cast<double>(count_tokens_for_other_nodes(GetParam(), rank));
    Tensor bytes = Tensor::empty({1}, DType::F64, device);
    bytes.data<double>()[0] = static_cast<double>((*meter)[CommOp::AllToAll].bytes);
    world.all_reduce(rows, ReduceOp::Sum).wait();
    world.all_reduce(bytes, ReduceOp::Sum).wait();
    constexpr double kRow = 2 * kWidth, kWeights = 4 * kTopk;
    EXPECT_EQ(bytes.data<double>()[0], rows.data<double>()[0] * (4 * kRow + 2 * kWeights));
  });
}

/// Compares formulas with counts of random choices.
TEST(AssumedChoicesTest, ProbabilityMatchesFractionOfRandomChoices) {
  struct Routing {
    i64 topk, experts, count, groups, group_topk;
  };
  for (const Routing& r : {Routing{1, 8, 2, 0, 0}, Routing{6, 16, 4, 0, 0}, Routing{8, 64, 8, 8, 4},
                           Routing{8, 64, 16, 8, 4}, Routing{8, 64, 4, 8, 4}, Routing{4, 4, 1, 0, 0}}) {
    constexpr int kDraws = 20000;
    int hits = 0;
    for (u64 draw = 0; draw < kDraws; ++draw) {
      const auto order = [draw](const char* what, i64 count) {
        std::vector<std::pair<u64, i64>> keys;
        for (i64 i = 0; i < count; ++i) keys.emplace_back(philox_key(draw, what, static_cast<u64>(i)), i);
        std::ranges::sort(keys);
        return keys;
      };
      std::set<i64> groups;  // allowed groups
      for (const auto& [key, group] : order("groups", std::max<i64>(r.groups, 1)))
        if (std::ssize(groups) < std::max<i64>(r.group_topk, 1)) groups.insert(group);
      const i64 group_size = r.experts / std::max<i64>(r.groups, 1);
      i64 left = r.topk;
      bool is_hit = false;
      for (const auto& [key, expert] : order("experts", r.experts)) {
        if (left == 0 || !groups.contains(expert / group_size)) continue;
        --left;
        is_hit |= expert < r.count;
      }
      hits += is_hit;
    }
    EXPECT_NEAR(probability_of_choice(r.topk, r.experts, r.count, r.groups, r.group_topk),
                static_cast<double>(hits) / kDraws, 0.015)
        << r.topk << " of " << r.experts << ", " << r.count;
  }
}

}  // namespace
}  // namespace mcpp::ep_hierarchical_test
