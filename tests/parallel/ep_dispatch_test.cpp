#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/ep/capacity.h"
#include "parallel/ep/token_dispatcher.h"
#include "tensor/transfer.h"
#include "tests/support/expert_placement.h"
#include "tests/support/tensors.h"

namespace mcpp::ep_dispatch_test {
namespace {

using test::integers_of;
using test::Numbers;
using test::to_doubles;
using testing::Test;

TEST(DispatchPlanTest, SendsNothingWithOneRank) {
  const DispatchPlan plan = plan_dispatch(std::vector<i32>{2, 1, 2}, 3, 0, 1, 0);
  EXPECT_EQ(plan.choices, 5);
  EXPECT_EQ(plan.rows, (std::vector<i64>{2, 1, 2}));
  EXPECT_TRUE(plan.is_sorted());
}

/// Two ranks with two experts each: rank 1 receives rows from both and sorts them by expert.
TEST(DispatchPlanTest, SortsReceivedRowsByExpert) {
  const std::vector<i32> counts{1, 0, 2, 3,  // of the first rank
                                4, 1, 1, 0};
  const DispatchPlan plan = plan_dispatch(counts, 4, 1, 2, 1);
  const auto pairs = [](const std::vector<Part>& parts) {
    std::vector<std::pair<i64, i64>> result;
    for (const Part& part : parts) result.emplace_back(part.first, part.count);
    return result;
  };
  using Pairs = std::vector<std::pair<i64, i64>>;
  EXPECT_EQ(plan.choices, 6);
  EXPECT_EQ(pairs(plan.sent), (Pairs{{0, 5}, {5, 1}}));
  EXPECT_EQ(pairs(plan.received), (Pairs{{0, 5}, {5, 1}}));
  EXPECT_EQ(plan.rows, (std::vector<i64>{3, 3}));
  EXPECT_EQ(plan.runs, (std::vector<i32>{0, 0, 2, 5, 2, 1, 2, 3, 3, 6, 6, 0}));
  EXPECT_EQ(plan.received_rows(), 6);
  EXPECT_FALSE(plan.is_sorted());
  EXPECT_THROW(plan_dispatch(counts, 3, 1, 1, 0), Error);
}

/// Two neighborhoods of two ranks each, with two experts each.
TEST(DispatchPlanTest, SendsSameNumberOfRowsToEachPaddedExpert) {
  const auto is_equal = [](const std::vector<Part>& parts, std::size_t count, i64 rows) {
    bool equal = parts.size() == count;
    for (std::size_t i = 0; equal && i < count; ++i)
      equal = parts[i].first == static_cast<i64>(i) * rows && parts[i].count == rows;
    return equal;
  };
  const DispatchPlan plan = plan_padded_dispatch({.per_rank = 5, .per_expert = 12}, 4, 4, 2);
  EXPECT_EQ(plan.choices, 20);
  EXPECT_TRUE(is_equal(plan.sent, 2, 10));
  EXPECT_TRUE(is_equal(plan.received, 4, 10));
  EXPECT_EQ(plan.rows, (std::vector<i64>{12, 12}));
  EXPECT_TRUE(plan_padded_dispatch({.per_rank = 6, .per_expert = 6}, 4, 1, 1).is_sorted());
  EXPECT_THROW(plan_padded_dispatch({.per_rank = 5, .per_expert = 12}, 5, 4, 2), Error);
  EXPECT_THROW(plan_padded_dispatch({.per_rank = 5, .per_expert = 12}, 4, 3, 2), Error);
  EXPECT_THROW(plan_padded_dispatch({.per_rank = 5, .per_expert = 12}, 4, 1, 1), Error);
}

constexpr TokenDispatcherType kHierarchical = TokenDispatcherType::Hierarchical;

/// Expert e multiplies by e + 1, so outputs are known. All dispatchers must return the sums and gradients of a single
/// rank.
struct Case {
  const char* name;
  int ep, tp;
  TokenDispatcherType dispatcher;
  i64 padded_rows = 0;
  std::vector<int> nodes = {};  ///< node of each rank; empty = all on one
};
class TokenDispatcherTest : public testing::TestWithParam<Case> {};
std::vector<Case> cases() {
  return {{"one", 1, 1, TokenDispatcherType::AllToAll},
          {"ep2", 2, 1, TokenDispatcherType::AllToAll},
          {"ep4", 4, 1, TokenDispatcherType::AllToAll},
          {"tp2", 1, 2, TokenDispatcherType::AllToAll},
          {"ep2_tp2", 2, 2, TokenDispatcherType::AllToAll},
          {"gather_ep4", 4, 1, TokenDispatcherType::AllGather},
          {"gather_ep2_tp2", 2, 2, TokenDispatcherType::AllGather},
          {"padded_one", 1, 1, TokenDispatcherType::AllToAll, 6},
          {"padded_ep4", 4, 1, TokenDispatcherType::AllToAll, 17},
          {"padded_tp2", 1, 2, TokenDispatcherType::AllToAll, 10},
          {"padded_gather_ep2_tp2", 2, 2, TokenDispatcherType::AllGather, 20},
          {"padded_ep2_tp2", 2, 2, TokenDispatcherType::AllToAll, 20},
          {"padded_gather_ep4", 4, 1, TokenDispatcherType::AllGather, 20},
          {"hierarchical_alone", 1, 1, kHierarchical},
          {"hierarchical_ep4", 4, 1, kHierarchical},
          {"hierarchical_tp2", 1, 2, kHierarchical},
          {"hierarchical_2_nodes", 4, 1, kHierarchical, 0, {0, 0, 1, 1}},
          {"hierarchical_4_nodes", 4, 1, kHierarchical, 0, {3, 2, 1, 0}},
          {"hierarchical_3_and_1", 4, 1, kHierarchical, 0, {0, 0, 0, 1}},
          {"hierarchical_round_robin", 4, 1, kHierarchical, 0, {7, 5, 7, 5}},
          {"hierarchical_tp2_2_nodes", 2, 2, kHierarchical, 0, {0, 0, 1, 1}},
          {"hierarchical_tp2_across", 2, 2, kHierarchical, 0, {0, 1, 1, 2}},
          {"hierarchical_tp4_across", 1, 4, kHierarchical, 0, {0, 1, 0, 2}},
          {"padded_hierarchical", 4, 1, kHierarchical, 20, {0, 0, 1, 1}}};
}
/// Returns the cases with padding.
std::vector<Case> padded_cases() {
  std::vector<Case> padded = cases();
  std::erase_if(padded, [](const Case& c) { return c.padded_rows == 0; });
  return padded;
}

INSTANTIATE_TEST_SUITE_P(Dispatchers, TokenDispatcherTest, testing::ValuesIn(cases()),
                         [](const auto& p) { return p.param.name; });

constexpr i64 kExperts = 4, kTopk = 2, kRankTokens = 5, kWidth = 3;

ops::PaddedRows padded_rows(const Case& c) {
  return {.per_rank = c.ep * c.tp == 1 ? c.padded_rows : kRankTokens, .per_expert = c.padded_rows};
}

/// Input of a rank: its tokens [kRankTokens, kWidth], their experts and weights [kRankTokens, kTopk], and the gradients
/// of the output.
struct RankInput {
  std::vector<i32> experts;
  Numbers x, weights, dy;
};

/// All tokens of the last rank choose one expert first; one choice was dropped.
RankInput make_rank_input(int rank, int ranks) {
  RankInput own;
  for (i64 t = 0; t < kRankTokens; ++t) {
    for (i64 j = 0; j < kTopk; ++j) {
      const i64 expert = j == 0 && rank == ranks - 1 ? 3 : (t + 2 * j + rank) % 3;
      own.experts.push_back(t == 3 && j == 1 ? -1 : static_cast<i32>(expert));
      own.weights.push_back(0.25 + 0.125 * static_cast<double>(t + j));
    }
    for (i64 i = 0; i < kWidth; ++i) {
      own.x.push_back(static_cast<double>(rank * 100 + t * 10 + i));
      own.dy.push_back(static_cast<double>(t - i + rank));
    }
  }
  return own;
}

/// Applies this rank's experts to their rows [n, kWidth], in the order of experts. Each rank of an expert's
/// tensor-parallel group contributes an equal part of the sum.
Tensor apply_experts(const Tensor& from, std::span<const i64> rows, const ExpertParallel& parallel) {
  Tensor y = Tensor::like(from);
  i64 row = 0;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const i64 expert = kExperts / parallel.ep * parallel.ep_rank + static_cast<i64>(e);
    const double factor = static_cast<double>(expert + 1) / parallel.tp;
    for (const i64 end = row + rows[e]; row < end; ++row)
      for (i64 i = 0; i < kWidth; ++i)
        y.data<double>()[row * kWidth + i] = factor * from.data<double>()[row * kWidth + i];
  }
  EXPECT_EQ(row, from.dim(0));
  return y;
}

/// Checks `out` and `dx` [kRankTokens, kWidth] and `d_weights` [kRankTokens, kTopk] against values computed from this
/// rank's input alone.
void expect_matches_one_rank(const RankInput& own, const Numbers& out, const Numbers& dx, const Numbers& d_weights) {
  for (i64 t = 0; t < kRankTokens; ++t) {
    double factor = 0;
    for (i64 j = 0; j < kTopk; ++j) {
      const auto at = static_cast<std::size_t>(t * kTopk + j);
      const double times = own.experts[at] < 0 ? 0 : own.experts[at] + 1;
      factor += own.weights[at] * times;
      double expected = 0;
      for (i64 i = 0; i < kWidth; ++i) {
        const auto element = static_cast<std::size_t>(t * kWidth + i);
        expected += times * own.x[element] * own.dy[element];
      }
      EXPECT_NEAR(d_weights[at], expected, 1e-9) << "token " << t << ", choice " << j;
    }
    for (i64 i = 0; i < kWidth; ++i) {
      const auto at = static_cast<std::size_t>(t * kWidth + i);
      EXPECT_NEAR(out[at], factor * own.x[at], 1e-9);
      EXPECT_NEAR(dx[at], factor * own.dy[at], 1e-9);
    }
  }
}

TEST_P(TokenDispatcherTest, CombinesExpertOutputsAndReturnsGradients) {
  const Case& c = GetParam();
  run_local_ranks(c.ep * c.tp, [&](Communicator& world, int rank) {
    CpuDevice device;
    const test::ExpertPlacement placed(world, c.dispatcher, c.tp, c.nodes);
    const ExpertParallel& parallel = placed.parallel;
    const RankInput own = make_rank_input(rank, world.size());
    const auto tensor = [&](const Numbers& values, const Shape& shape) {
      Tensor t = Tensor::empty(shape, DType::F64, device);
      test::set_values(t, values);
      return t;
    };
    const Tensor tokens = tensor(own.x, {kRankTokens, kWidth}), weights = tensor(own.weights, {kRankTokens, kTopk}),
                 d_out = tensor(own.dy, {kRankTokens, kWidth});
    const ExpertChoice choice =
        exchange_choices(integers_of(own.experts, device).view({kRankTokens, kTopk}), kExperts, parallel);
    const auto dispatcher = make_token_dispatcher(choice, parallel, padded_rows(c));
    int calls = 0;
    const Tensor rows = dispatcher->dispatch(tokens, [&] { ++calls; });
    for (const i64 count : dispatcher->rows()) EXPECT_TRUE(c.padded_rows == 0 || count == c.padded_rows);
    const auto combined = dispatcher->combine(apply_experts(rows, dispatcher->rows(), parallel), weights, [] {});
    const Numbers out = to_doubles(combined.out);
    const auto again = make_token_dispatcher(choice, parallel, padded_rows(c));  // rebuilt, as in backward
    const auto gradients = again->combine_backward(d_out, combined.saved, combined.weights, {}, [] {});
    const Numbers d_weights = to_doubles(gradients.weights),
                  dx = to_doubles(again->dispatch_backward(apply_experts(gradients.rows, dispatcher->rows(), parallel),
                                                           [&] { ++calls; }));
    EXPECT_EQ(calls, 2);
    expect_matches_one_rank(own, out, dx, d_weights);
  });
}

/// Results of a dispatcher for a rank's input and experts that add biases, which padding also receives.
struct Dispatched {
  Tensor rows, out, d_rows, d_weights, dx;
};

Dispatched pass_through(TokenDispatcher& dispatcher, const Tensor& tokens, const Tensor& weights, const Tensor& d_out) {
  Dispatched result;
  result.rows = dispatcher.dispatch(tokens, [] {});
  Tensor y = Tensor::like(result.rows);
  ops::copy(result.rows, y);
  ops::add_bias(y, test::random_tensor({y.dim(1)}, y.dtype(), y.device(), 3, 1, 0));
  const TokenDispatcher::Combined combined = dispatcher.combine(y, weights, [] {});
  result.out = combined.out;
  const auto gradients = dispatcher.combine_backward(d_out, combined.saved, combined.weights, {}, [] {});
  result.d_rows = gradients.rows, result.d_weights = gradients.weights;
  result.dx = dispatcher.dispatch_backward(gradients.rows, [] {});
  return result;
}

class PaddedTokenDispatcherTest : public TokenDispatcherTest {};
INSTANTIATE_TEST_SUITE_P(Dispatchers, PaddedTokenDispatcherTest, testing::ValuesIn(padded_cases()),
                         [](const auto& p) { return p.param.name; });

/// Tables computed on the device order rows as the host does, which knows their numbers.
TEST_P(PaddedTokenDispatcherTest, IsBitwiseIdenticalToPaddingOfKnownSizes) {
  const Case& c = GetParam();
  run_local_ranks(c.ep * c.tp, [&](Communicator& world, int rank) {
    CpuDevice device;
    const test::ExpertPlacement placed(world, c.dispatcher, c.tp, c.nodes);
    const ExpertParallel& parallel = placed.parallel;
    const RankInput own = make_rank_input(rank, world.size());
    const auto random = [&](const Shape& shape, DType dtype, u64 seed) {
      return test::random_tensor(shape, dtype, device, 10 * static_cast<u64>(rank) + seed, 1, 0);
    };
    const Tensor tokens = random({kRankTokens, kWidth}, DType::BF16, 1), d_out = random(tokens.shape(), DType::BF16, 2),
                 weights = random({kRankTokens, kTopk}, DType::F32, 3);
    const ExpertChoice choice =
        exchange_choices(integers_of(own.experts, device).view({kRankTokens, kTopk}), kExperts, parallel);
    const auto fixed = make_token_dispatcher(choice, parallel, padded_rows(c));
    PaddedDispatcher known(make_token_dispatcher(choice, parallel), c.padded_rows, device);
    const Dispatched found = pass_through(*fixed, tokens, weights, d_out),
                     expected = pass_through(known, tokens, weights, d_out);
    EXPECT_TRUE(test::same_bits(found.rows, expected.rows));
    EXPECT_TRUE(test::same_bits(found.out, expected.out));
    EXPECT_TRUE(test::same_bits(found.d_rows, expected.d_rows));
    EXPECT_TRUE(test::same_bits(found.d_weights, expected.d_weights));
    EXPECT_TRUE(test::same_bits(found.dx, expected.dx));
  });
}

constexpr i64 kWide = 75;  ///< three blocks of 32, the last of which is smaller

/// Returns bf16 rows [kRankTokens, kWide] of different magnitudes, with a block of zeros, and one with a NaN.
Tensor wide_rows(Device& device, int rank, u64 seed) {
  Numbers x = test::normals(kRankTokens * kWide, seed + static_cast<u64>(rank), DType::BF16, 1e-3);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0, static_cast<int>(i / kWide) * 5);
  std::fill(x.begin(), x.begin() + 32, 0);
  x[2 * kWide + 40] = std::nan("");
  return test::tensor_of(x, {kRankTokens, kWide}, DType::BF16, device, 0);
}

/// Expects that codes decode to `rows` rounded in blocks of 32.
void expect_codes_of(const Tensor& codes, const RowEncoding& encoding, const Tensor& rows) {
  Tensor decoded = Tensor::like(rows), rounded = Tensor::like(rows);
  ops::decode_rows(codes, encoding, decoded);
  ops::round_to_fp8(rows, {.format = encoding.format, .block = {1, encoding.block}}, rounded);
  const Numbers found = to_doubles(decoded), expected = to_doubles(rounded);
  for (std::size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))) << i;
}

/// Codes of tokens and of gradients decode to what the ranks would round after an exchange in bf16, even if a rank
/// receives none, and gradients of weights are the same.
TEST_P(TokenDispatcherTest, RowsInCodesEqualRowsRoundedAfterExchange) {
  const Case& c = GetParam();
  run_local_ranks(c.ep * c.tp, [&](Communicator& world, int rank) {
    CpuDevice device;
    const test::ExpertPlacement placed(world, c.dispatcher, c.tp, c.nodes);
    const ExpertParallel& parallel = placed.parallel;
    const RankInput own = make_rank_input(0, 2);  // no rank chooses the last expert
    const RowEncoding to_experts{.block = 32}, of_gradients{.block = 32, .format = Fp8Format::E5M2};
    const Tensor tokens = wide_rows(device, rank, 1), d_out = wide_rows(device, rank, 100);
    Tensor weights = Tensor::empty({kRankTokens, kTopk}, DType::F32, device);
    test::set_values(weights, own.weights);
    const ExpertChoice choice =
        exchange_choices(integers_of(own.experts, device).view({kRankTokens, kTopk}), kExperts, parallel);
    const auto dispatcher = make_token_dispatcher(choice, parallel, padded_rows(c));
    const Tensor rows = dispatcher->dispatch(tokens, [] {});
    expect_codes_of(dispatcher->dispatch(encode_if_defined(tokens, to_experts), [] {}), to_experts, rows);
    const auto gradients = [&](const RowEncoding& encoding) {
      Tensor y = Tensor::like(rows);
      ops::copy(rows, y);
      const auto combined = dispatcher->combine(y, weights, [] {});
      return dispatcher->combine_backward(d_out, combined.saved, combined.weights, encoding, [] {});
    };
    const auto plain = gradients({}), encoded = gradients(of_gradients);
    expect_codes_of(encoded.rows, of_gradients, plain.rows);
    EXPECT_TRUE(test::same_bits(encoded.weights, plain.weights));
  });
}

/// A row of 128 bf16 elements has 256 bytes; its codes have 128, and its scales 4, rounded up to a word.
TEST(TokenDispatcherExchangeTest, SendsOneBytePerElementAndScales) {
  constexpr i64 kColumns = 128, kCodedBytes = 132;
  run_local_ranks(2, [&](Communicator& world, int rank) {
    const auto meter = std::make_shared<CommMeter>();
    const auto exchange = make_metered(world.split(0, rank), meter);
    CpuDevice device;
    const ExpertParallel parallel{.ep = 2, .ep_rank = rank, .exchange = exchange.get()};
    const ExpertChoice choice = exchange_choices(integers_of({0, 1, 2, 3, 1, 2}, device).view({3, 2}), 4, parallel);
    const auto dispatcher = make_token_dispatcher(choice, parallel);
    const Tensor tokens = test::random_tensor({3, kColumns}, DType::BF16, device, 1, 1, 0);
    const auto sent_bytes = [&](const Tensor& x) {
      meter->reset();
      dispatcher->dispatch(x, [] {});
      return meter->total_bytes();
    };
    EXPECT_EQ(sent_bytes(tokens), 3 * 2 * kColumns);
    EXPECT_EQ(sent_bytes(encode_if_defined(tokens, {.block = 32})), 3 * kCodedBytes);
    EXPECT_EQ(sent_bytes(encode_if_defined(tokens, {.block = 128})), 3 * kCodedBytes);
  });
}

/// Ranks exchange counts in one message, and backward does not repeat the exchange.
TEST(TokenDispatcherExchangeTest, ExchangesCountsOnce) {
  for (const TokenDispatcherType type :
       {TokenDispatcherType::AllToAll, TokenDispatcherType::AllGather, kHierarchical}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      const auto meter = std::make_shared<CommMeter>();
      const auto exchange = make_metered(world.split(0, rank), meter);
      CpuDevice device;
      const ExpertParallel parallel{.dispatcher = type, .ep = 2, .ep_rank = rank, .exchange = exchange.get()};
      const ExpertChoice choice = exchange_choices(integers_of({0, 1, 2, 3, 1, 0}, device).view({3, 2}), 4, parallel);
      for (int pass = 0; pass < 2; ++pass) make_token_dispatcher(choice, parallel);
      i64 calls = 0;
      for (const CommMeter::Count& count : meter->by_op) calls += count.calls;
      EXPECT_EQ(calls, 1);
    });
  }
}

TEST(PaddedDispatchTest, RejectsMoreRowsThanCapacity) {
  CpuDevice device;
  const Tensor experts = integers_of({0, 0, 1}, device).view({3, 1});
  const ExpertParallel alone;
  EXPECT_THROW(make_token_dispatcher(exchange_choices(experts, 2, alone), alone, {.per_rank = 1, .per_expert = 1}),
               std::exception);
}

TEST(ExpertCapacityTest, CountsMicrobatchesSharingTokens) {
  EXPECT_EQ(max_microbatches(1, 1), 1);
  EXPECT_EQ(max_microbatches(2, 4), 1);  // a part of one
  EXPECT_EQ(max_microbatches(8, 2), 4);
  EXPECT_EQ(max_microbatches(6, 4),
            3);  // ranks 2 .. 7 in microbatches of 4: parts of two, and ranks 6 .. 11: parts of three
}

TEST(ExpertCapacityTest, IsShareTimesFactorRoundedUp) {
  EXPECT_EQ(expert_capacity(16, 4, 1), 4);
  EXPECT_EQ(expert_capacity(17, 4, 1), 5);
  EXPECT_EQ(expert_capacity(16, 4, 1.25), 5);
  EXPECT_EQ(expert_capacity(16, 4, 1e-9), 1);
  for (const double factor : {4.0, 100.0, 1e18, 1e300}) EXPECT_EQ(expert_capacity(16, 4, factor), 16) << factor;
}

/// Dropped choices must be identical whether one rank has all tokens or several ranks share them.
TEST(ExpertCapacityTest, DropsLowestWeightsOrLastTokens) {
  const std::vector<i32> experts{0, 0, 1, 0, 0, 1};  // one choice each
  const std::vector<i32> order{0, 5, 1, 4, 2, 3};
  const Numbers weights{0.5, 0.9, 0.2, 0.7, 0.7, 0.3};
  const std::vector<i32> by_weight{-1, 0, 1, -1, 0, 1}, by_order{0, -1, 1, -1, 0, 1};
  for (const int ranks : {1, 2, 3}) {
    run_local_ranks(ranks, [&](Communicator& world, int rank) {
      CpuDevice device;
      const auto own = static_cast<std::size_t>(6 / ranks), first = own * static_cast<std::size_t>(rank);
      const auto part = [&](const auto& all) {
        return std::decay_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(first),
                                           all.begin() + static_cast<std::ptrdiff_t>(first + own));
      };
      Tensor own_weights = Tensor::empty({static_cast<i64>(own), 1}, DType::F64, device);
      test::set_values(own_weights, part(weights));
      CapacityRule rule{.experts = integers_of(part(experts), device).view({-1, 1}),
                        .weights = own_weights,
                        .order = integers_of(part(order), device),
                        .num_experts = 2,
                        .capacity = 2};
      EXPECT_EQ(read_values<i32>(drop_overflow(rule, &world)), part(by_weight));
      rule.weights = {};
      EXPECT_EQ(read_values<i32>(drop_overflow(rule, &world)), part(by_order));
    });
  }
}

/// The step will be skipped, but the order must still be deterministic.
TEST(ExpertCapacityTest, KeepsNaNWeightsFirst) {
  CpuDevice device;
  constexpr i64 kTokens = 100, kTaken = 20;
  std::vector<i32> order(kTokens), wanted(kTokens, -1);
  std::iota(order.begin(), order.end(), 0);
  Numbers weights(kTokens);
  for (i64 i = 0; i < kTokens; ++i) {
    const bool is_broken = i % 10 == 7, is_high = i % 10 == 3;
    weights[static_cast<std::size_t>(i)] = is_broken ? std::nan("") : is_high ? 0.9 : 0.01 * static_cast<double>(i % 7);
    if (is_broken || is_high) wanted[static_cast<std::size_t>(i)] = 0;
  }
  Tensor all = Tensor::empty({kTokens, 1}, DType::F32, device);
  test::set_values(all, weights);
  const CapacityRule rule{.experts = integers_of(std::vector<i32>(kTokens, 0), device).view({-1, 1}),
                          .weights = all,
                          .order = integers_of(order, device),
                          .num_experts = 1,
                          .capacity = kTaken};
  EXPECT_EQ(read_values<i32>(drop_overflow(rule, nullptr)), wanted);
}

TEST(SequenceShardTest, ScattersAndGathersRows) {
  for (const i64 rows : {1, 2, 3, 7, 8}) {
    run_local_ranks(3, [&](Communicator& world, int) {
      CpuDevice device;
      Numbers values(static_cast<std::size_t>(rows * 2));
      std::iota(values.begin(), values.end(), 1);
      Tensor x = Tensor::empty({rows, 2}, DType::F32, device);
      test::set_values(x, values);
      const SequenceShard part(&world);
      EXPECT_EQ(to_doubles(part.gather(part.scatter(x), rows)), values) << rows << " rows";
    });
  }
}

}  // namespace
}  // namespace mcpp::ep_dispatch_test
