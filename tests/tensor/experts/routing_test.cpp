#include <algorithm>
#include <array>
#include <numeric>

#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class RoutingOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, RoutingOpsTest,
                         testing::Combine(testing::Values(DType::F32, DType::F64), testing::ValuesIn(all_targets())),
                         ops_name);

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Returns rules for E experts, with groups if they divide the experts.
std::vector<RoutingRule> rules_for(i64 experts) {
  std::vector<RoutingRule> rules;
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid, RouterScore::SqrtSoftplus}) {
    for (const bool pre_softmax : {false, true}) {
      for (const i64 k : {1, 2, 6, 8}) {
        if (k > experts || (score != RouterScore::Softmax && pre_softmax)) continue;
        rules.push_back({k, score, pre_softmax, 0, 0, k == 6 ? 2.5 : 1});
        if (experts % 4 != 0 || k % 2 != 0 || k > experts / 2) continue;
        rules.push_back({k, score, pre_softmax, 4, 2, 1});
        rules.push_back({k, score, pre_softmax, 4, 2, 1, 1});
      }
    }
  }
  return rules;
}

std::string describe(const RoutingRule& rule, i64 rows, i64 experts) {
  constexpr std::array<const char*, 3> kScores{"softmax", "sigmoid", "sqrtsoftplus"};
  return str("[", rows, ", ", experts, "] ", kScores[static_cast<std::size_t>(rule.score)],
             rule.pre_softmax ? " before" : "", ", best ", rule.topk, ", groups ", rule.groups, " by best ",
             rule.group_score_topk);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Returns the score of a logit of a function that maps each logit alone.
double score_of(RouterScore score, double x) {
  return score == RouterScore::Sigmoid ? sigmoid(x) : std::sqrt(std::log1p(std::exp(x)));
}

double lse_of(const Numbers& x) {
  const double largest = *std::ranges::max_element(x);
  double sum = 0;
  for (const double v : x) sum += std::exp(v - largest);
  return largest + std::log(sum);
}

Numbers softmax(Numbers x) {
  const double lse = lse_of(x);
  for (double& v : x) v = std::exp(v - lse);
  return x;
}

Numbers row_of(const Numbers& x, i64 row, i64 n) {
  return {x.begin() + row * n, x.begin() + (row + 1) * n};
}

/// Returns the indices of the k best scores by sorting.
std::vector<i32> best_of(const Numbers& scores, const std::vector<i32>& among, i64 k) {
  std::vector<i32> order = among;
  std::ranges::stable_sort(order, [&](i32 a, i32 b) {
    const double x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return std::isnan(x) ? !std::isnan(y) : x > y;
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

std::vector<i32> reference_choice(const RoutingRule& rule, const Numbers& logits, const Numbers& bias) {
  Numbers scores = rule.score == RouterScore::Softmax && rule.pre_softmax ? softmax(logits) : logits;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    if (rule.score != RouterScore::Softmax) scores[e] = score_of(rule.score, scores[e]);
    if (!bias.empty()) scores[e] += bias[e];
  }
  std::vector<i32> all(logits.size());
  std::iota(all.begin(), all.end(), 0);
  if (rule.groups == 0) return best_of(scores, all, rule.topk);
  const i64 size = static_cast<i64>(all.size()) / rule.groups;
  Numbers sums;
  for (i64 g = 0; g < rule.groups; ++g) {
    double sum = 0;
    for (const i32 e : best_of(scores, {all.begin() + g * size, all.begin() + (g + 1) * size},
                               rule.group_score_topk > 0 ? rule.group_score_topk : rule.topk / rule.group_topk))
      sum += scores[static_cast<std::size_t>(e)];
    sums.push_back(sum);
  }
  std::vector<i32> groups = best_of(sums, {all.begin(), all.begin() + rule.groups}, rule.group_topk), among;
  std::ranges::sort(groups);
  for (const i32 g : groups) among.insert(among.end(), all.begin() + g * size, all.begin() + (g + 1) * size);
  return best_of(scores, among, rule.topk);
}

std::vector<i32> integers(const Tensor& x) {
  const HostValues<i32> values(x);
  return {values.begin(), values.end()};
}

const std::vector<Size> kRouters{{0, 4}, {1, 1}, {1, 2}, {5, 7}, {130, 8}, {40, 64}, {19, 100}, {700, 24}, {3, 515}};

TEST_P(RoutingOpsTest, ChoosesBestExperts) {
  for (const auto [rows, n] : kRouters) {
    for (const RoutingRule& rule : rules_for(n)) {
      for (const bool has_bias : {false, true}) {
        const Numbers x = normals(rows * n, 1), b = test::normals(has_bias ? n : 0, 2, DType::F32, 0.3);
        const auto outputs = run([&](Device& device) {
          const Tensor logits = tensor_of(x, {rows, n}, dtype(), device);
          const Tensor bias = tensor_of(b, {has_bias ? n : 0}, DType::F32, device);
          Tensor experts = Tensor::empty({rows, rule.topk}, DType::I32, device);
          ops::choose_experts(logits, has_bias ? &bias : nullptr, rule, experts);
          return std::vector{experts};
        });
        std::vector<i32> expected;
        for (i64 r = 0; r < rows; ++r) {
          const std::vector<i32> row = reference_choice(rule, row_of(x, r, n), b);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        ASSERT_EQ(integers(outputs[0]), expected) << describe(rule, rows, n);
      }
    }
  }
}

// Even for equal logits, NaN and infinities, the choice is deterministic and without duplicates.
TEST_P(RoutingOpsTest, ChoosesDeterministicallyAmongEqualAndNonFiniteLogits) {
  const i64 rows = 60, n = 16;
  Numbers x;
  for (i64 i = 0; i < rows * n; ++i) {
    const i64 kind = i / n % 4, v = i * i * 7 % 11;
    const bool is_broken = kind == 3 || (kind > 0 && v == 3);
    x.push_back(!is_broken ? static_cast<double>(v / 4) : kind == 2 ? -kInf : kNan);
  }
  for (const RoutingRule& rule : rules_for(n)) {
    const auto outputs = run([&](Device& device) {
      Tensor experts = Tensor::empty({rows, rule.topk}, DType::I32, device);
      ops::choose_experts(tensor_of(x, {rows, n}, dtype(), device), nullptr, rule, experts);
      return std::vector{experts};
    });
    const std::vector<i32> chosen = integers(outputs[0]);
    for (i64 r = 0; r < rows; ++r) {
      const std::vector<i32> row(chosen.begin() + r * rule.topk, chosen.begin() + (r + 1) * rule.topk);
      std::vector<i32> sorted = row;
      std::ranges::sort(sorted);
      EXPECT_TRUE(std::ranges::adjacent_find(sorted) == sorted.end() && sorted.front() >= 0 && sorted.back() < n);
      if (rule.groups > 0 && r % 4 != 0) continue;  // NaN spreads over rows and groups
      EXPECT_EQ(row, reference_choice(rule, row_of(x, r, n), {})) << describe(rule, r, n);
    }
  }
}

Numbers reference_weights(const RoutingRule& rule, const Numbers& logits, const i32* experts) {
  Numbers weights;
  const Numbers all = softmax(logits);
  for (i64 j = 0; j < rule.topk; ++j) {
    const std::size_t e = static_cast<std::size_t>(experts[j]);
    weights.push_back(rule.score != RouterScore::Softmax ? score_of(rule.score, logits[e])
                      : rule.pre_softmax                 ? all[e]
                                                         : logits[e]);
  }
  if (rule.score == RouterScore::Softmax && !rule.pre_softmax) weights = softmax(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 1e-20);
  for (double& w : weights) w *= rule.scale / (rule.score != RouterScore::Softmax && rule.topk > 1 ? sum : 1);
  return weights;
}

struct RoutingWeights {
  Tensor logits, experts, weights, d_weights, d_logits;

  RoutingWeights(const Numbers& x, const Numbers& dw, const RoutingRule& rule, i64 n, DType type, Device& device,
                 i64 first) {
    const i64 rows = static_cast<i64>(x.size()) / n;
    logits = tensor_of(x, {rows, n}, type, device, first);
    experts = Tensor::empty({rows, rule.topk}, DType::I32, device);
    weights = garbage({rows, rule.topk}, type, device, first);
    d_weights = tensor_of(dw, {rows, rule.topk}, type, device, first);
    d_logits = garbage({rows, n}, type, device, first);
    ops::choose_experts(logits, nullptr, rule, experts);
    ops::routing_weights(logits, experts, rule, weights);
    ops::routing_weights_backward(d_weights, logits, experts, rule, d_logits);
  }
};

TEST_P(RoutingOpsTest, ExpertWeightsMatchReference) {
  CpuDevice host;
  for (const auto [rows, n] : kRouters) {
    for (const RoutingRule& rule : rules_for(n)) {
      SCOPED_TRACE(describe(rule, rows, n));
      const Numbers x = normals(rows * n, 1, 3), dw = normals(rows * rule.topk, 2);
      const auto outputs = run([&, n = n](Device& device) {
        const RoutingWeights w(x, dw, rule, n, dtype(), device, target().first);
        return std::vector{w.weights, w.d_logits, w.experts};
      });
      Numbers weights;
      const std::vector<i32> experts = integers(outputs[2]);
      for (i64 r = 0; r < rows; ++r) {
        const Numbers row = reference_weights(rule, row_of(x, r, n), experts.data() + r * rule.topk);
        weights.insert(weights.end(), row.begin(), row.end());
      }
      expect_close(outputs[0], weights, "weights");
      // The finite differences below verify the gradient in fp64.
      expect_close(outputs[1], to_doubles(RoutingWeights(x, dw, rule, n, DType::F64, host, 1).d_logits), "d_logits", 4);
      if (HasFailure()) return;
    }
  }
}

TEST(RoutingGradientTest, WeightsMatchFiniteDifferences) {
  CpuDevice device;
  const i64 rows = 5, n = 8;
  for (const RoutingRule& rule : rules_for(n)) {
    RoutingWeights w(normals(rows * n, 1, DType::F64, 2), normals(rows * rule.topk, 2), rule, n, DType::F64, device, 1);
    const auto loss = [&] {
      ops::routing_weights(w.logits, w.experts, rule, w.weights);
      return dot(w.weights, w.d_weights);
    };
    expect_gradient(loss, w.logits, w.d_logits, describe(rule, rows, n));
  }
}

/// Returns the scores of a row that balancing losses sum.
Numbers balanced_scores(RouterScore score, const Numbers& logits) {
  if (score == RouterScore::Softmax) return softmax(logits);
  Numbers y;
  for (const double x : logits) y.push_back(score_of(score, x));
  const double sum = std::accumulate(y.begin(), y.end(), 1e-20);
  for (double& v : y) v /= sum;
  return y;
}

struct Balanced {
  Tensor logits, factors, sums, squares, d_logits;
  RouterScore score;
  double z;

  Balanced(RouterScore s, double z_factor, const Numbers& x, const Numbers& f, i64 batch, i64 n, DType type,
           Device& device, i64 first)
      : score(s), z(z_factor) {
    const i64 rows = static_cast<i64>(x.size()) / n;
    logits = tensor_of(x, {rows, n}, type, device, first);
    factors = tensor_of(f, {batch, n}, DType::F64, device, first);
    sums = garbage({batch, n}, DType::F64, device, first);
    squares = garbage({1}, DType::F64, device, first);
    d_logits = tensor_of(Numbers(x.size(), 0.5), {rows, n}, type, device, first);
    forward();
    ops::router_score_sums_backward(logits, score, {.factors = factors, .z_scale = z}, d_logits);
  }
  void forward() { ops::router_score_sums(logits, score, sums, squares); }
};

/// A multiplier that the op reads equals the same factor of the loss, and a loss without factors the one with zeros.
TEST_P(RoutingOpsTest, MultiplierOfLossEqualsItsScale) {
  constexpr i64 kRows = 37, kExperts = 9;
  const Numbers x = normals(kRows * kExperts, 1, 3), f = test::normals(2 * kExperts, 2);
  for (const bool has_factors : {true, false}) {
    run([&](Device& device) {
      const Tensor logits = tensor_of(x, {kRows, kExperts}, dtype(), device),
                   factors = has_factors ? tensor_of(f, {2, kExperts}, DType::F64, device) : Tensor(),
                   zeros = Tensor::zeros({1, kExperts}, DType::F64, device),
                   multiplier = tensor_of({0.3}, {1}, DType::F64, device);
      Tensor multiplied = Tensor::zeros(logits.shape(), dtype(), device), scaled = Tensor::like(logits);
      ops::fill_zero(scaled);
      ops::router_score_sums_backward(logits, RouterScore::Sigmoid,
                                      {.factors = factors, .scale = 0.7, .z_scale = 0.2, .multiplier = multiplier},
                                      multiplied);
      ops::router_score_sums_backward(
          logits, RouterScore::Sigmoid,
          {.factors = has_factors ? factors : zeros, .scale = 0.7 * 0.3, .z_scale = 0.2 * 0.3}, scaled);
      EXPECT_EQ(to_doubles(multiplied), to_doubles(scaled));
      return std::vector{multiplied};
    });
  }
}

TEST_P(RoutingOpsTest, ScoreSumsMatchReference) {
  CpuDevice host;
  for (const auto [rows, n] : kRouters) {
    for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid, RouterScore::SqrtSoftplus}) {
      for (const i64 batch : {1, 3}) {
        const Numbers x = normals(rows * n, 1, 3), f = test::normals(batch * n, 2);
        const auto all = [&, n = n](DType type, Device& device, i64 first) {
          const Balanced b(score, 0.1, x, f, batch, n, type, device, first);
          return std::vector{b.sums, b.squares, b.d_logits};
        };
        const auto outputs = run([&](Device& device) { return all(dtype(), device, target().first); });
        Numbers sums(f.size()), squares(1);
        for (i64 r = 0; r < rows; ++r) {
          const Numbers row = row_of(x, r, n), scores = balanced_scores(score, row);
          for (i64 e = 0; e < n; ++e) sums[r % batch * n + e] += scores[static_cast<std::size_t>(e)];
          squares[0] += std::pow(lse_of(row), 2);
        }
        const double rounding = 2 * tolerance(dtype());
        expect_close(outputs[0], sums, rounding, 1, "sums");
        expect_close(outputs[1], squares, rounding, 1, "squares");
        expect_close(outputs[2], to_doubles(all(DType::F64, host, 1)[2]), rounding, 4, "d_logits");
        if (HasFailure()) return;
      }
    }
  }
}

TEST(RoutingGradientTest, ScoreSumsMatchFiniteDifferences) {
  CpuDevice device;
  const i64 rows = 6, n = 9, batch = 2;
  for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid, RouterScore::SqrtSoftplus}) {
    Balanced b(score, 0.3, normals(rows * n, 1, DType::F64, 2), normals(batch * n, 2), batch, n, DType::F64, device, 1);
    for (i64 i = 0; i < b.d_logits.numel(); ++i)
      b.d_logits.data<double>()[i] -= 0.5;  // initial value to which the gradient is added
    const auto loss = [&] {
      b.forward();
      return dot(b.sums, b.factors) + b.z * b.squares.data<double>()[0];
    };
    expect_gradient(loss, b.logits, b.d_logits, "logits", 1e-6, 1000);
  }
}

TEST(RoutingTest, RejectsInvalidRules) {
  CpuDevice device;
  const Tensor logits = Tensor::zeros({3, 8}, DType::F32, device);
  Tensor experts = Tensor::zeros({3, 2}, DType::I32, device), nine = Tensor::zeros({3, 9}, DType::I32, device);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.topk = 9}, nine), Error);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.topk = 3}, experts), Error);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.groups = 3, .group_topk = 1}, experts), Error);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.groups = 8, .group_topk = 1}, experts), Error);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.groups = 4, .group_topk = 0}, experts), Error);
  EXPECT_THROW(ops::choose_experts(logits, nullptr, {.groups = 4, .group_topk = 2, .group_score_topk = 3}, experts),
               Error);
  EXPECT_THROW(ops::choose_experts(logits, &logits, {}, experts), Error);
  EXPECT_THROW(ops::choose_experts(Tensor::zeros({3, 8}, DType::BF16, device), nullptr, {}, experts), Error);
  Tensor d_logits = Tensor::like(logits), squares = Tensor::zeros({1}, DType::F64, device);
  EXPECT_THROW(ops::router_score_sums(logits, RouterScore::Softmax, d_logits, squares), Error);
}

}  // namespace
}  // namespace mcpp::test
