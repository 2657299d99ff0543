// PowerSGD: gradient sums by low-rank factors, compared with the algorithm in double precision and with its guarantees.
#include <gtest/gtest.h>

#include <limits>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/dp/power_sgd.h"
#include "parallel/dp/zero.h"
#include "tensor/ops/low_rank.h"
#include "tensor/ops/ops.h"
#include "tests/support/layouts/dp_toy.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

using test::DpGroups;
using test::DpLayout;
using test::Numbers;
using test::ToyModel;
using test::ToySum;
using test::ToyTraining;

constexpr i64 kRank = 2;

struct Rank {
  Rank(Communicator& world, int stage, bool overlap = true, DpLayout layout = {})
      : groups(world, filled(world, layout)) {
    groups.shard = make_metered(std::move(groups.shard), meter);
    buffer = make_param_and_grad_buffer(model.unit_params(), DType::F32, device, groups.refs(),
                                        {.zero_stage = stage,
                                         .formats = {.power_sgd_rank = kRank},
                                         .bucket_size = 400,
                                         .overlap_grad_reduce = overlap});
  }
  static DpLayout filled(const Communicator& world, DpLayout layout) {
    return layout.ranks() == world.size() ? layout : DpLayout{world.size(), 1};
  }
  /// Ends a step with this update factor; a non-finite factor skips the step.
  void end_step(double factor = 1) {
    Tensor t = Tensor::zeros({1}, DType::F64, device, MemoryClass::Other);
    *t.data<double>() = factor;
    buffer->end_step(t);
  }
  Numbers errors() const {
    Numbers all;
    for (const PowerSgdState& state : buffer->power_sgd_states()) {
      const Numbers error = test::to_doubles(state.error);
      all.insert(all.end(), error.begin(), error.end());
    }
    return all;
  }

  std::shared_ptr<CommMeter> meter = std::make_shared<CommMeter>();
  CpuDevice device;
  ToyModel model;
  DpGroups groups;
  std::unique_ptr<ParamAndGradBuffer> buffer;
};

TEST(PowerSgdTest, CompressesMatricesThatShrinkToHalfOrLess) {
  EXPECT_TRUE(is_low_rank({100, 100}, 4));
  EXPECT_TRUE(is_low_rank({4, 25, 100}, 4)) << "as [100, 100]";
  EXPECT_TRUE(is_low_rank({100, 100}, 25));
  EXPECT_FALSE(is_low_rank({100, 100}, 26));
  EXPECT_FALSE(is_low_rank({100, 100}, 0));
  EXPECT_FALSE(is_low_rank({10000}, 1));
  EXPECT_FALSE(is_low_rank({0, 100}, 1));
}

TEST(PowerSgdTest, CompressesOnlyLinearMaps) {
  Param table("embedding.word_embeddings.weight", Shape{100, 100}, Init::Normal), map = table;
  map.matrices = {slab(map.box.global, 0, 0, 100)};
  EXPECT_FALSE(is_low_rank(table, 4)) << "of a token's row";
  EXPECT_TRUE(is_low_rank(map, 4));
  EXPECT_FALSE(is_low_rank(map, 26));
}

/// Computes a step in double precision from the gradient, error and factor of each rank. orthonormalize() has its own
/// test.
struct Reference {
  i64 rows, columns;
  std::vector<Numbers> errors;  // by rank
  Numbers factor;

  Numbers step(const std::vector<Numbers>& gradients, Device& device) {
    const auto n = static_cast<std::size_t>(rows), m = static_cast<std::size_t>(columns),
               r = static_cast<std::size_t>(kRank);
    Numbers p(n * r), q(m * r), sum(n * m);
    for (std::size_t w = 0; w < gradients.size(); ++w) {
      for (std::size_t i = 0; i < n * m; ++i) errors[w][i] += gradients[w][i];
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < m; ++j)
          for (std::size_t k = 0; k < r; ++k) p[i * r + k] += errors[w][i * m + j] * factor[j * r + k];
    }
    Tensor columns_of_p = Tensor::empty({rows, kRank}, DType::F64, device);
    test::set_values(columns_of_p, p);
    ops::orthonormalize(columns_of_p);
    p = test::to_doubles(columns_of_p);
    for (const Numbers& sent : errors) {
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < m; ++j)
          for (std::size_t k = 0; k < r; ++k) q[j * r + k] += sent[i * m + j] * p[i * r + k];
    }
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < m; ++j)
        for (std::size_t k = 0; k < r; ++k) sum[i * m + j] += p[i * r + k] * q[j * r + k];
    for (Numbers& error : errors) {
      for (std::size_t i = 0; i < n * m; ++i) error[i] -= sum[i] / static_cast<double>(gradients.size());
    }
    factor = q;
    return sum;
  }
};

/// Returns the initial factor, which is independent of the gradients.
Numbers directions(i64 columns, Device& device) {
  Tensor factor = Tensor::zeros({columns, kRank}, DType::F64, device, MemoryClass::Other);
  ops::orthonormalize(factor);
  return test::to_doubles(factor);
}

Numbers made_up_grads(const Param& param, int step, int rank) {
  Numbers grads;
  for (i64 i = 0; i < param.numel(); ++i) grads.push_back(test::made_up_grad(step, 0, rank, 0, param.name, i));
  return grads;
}

TEST(PowerSgdTest, MatchesPublishedAlgorithm) {
  constexpr int kRanks = 3, kSteps = 4;
  run_local_ranks(kRanks, [&](Communicator& world, int rank) {
    Rank r(world, 0);
    ToyTraining training{r.model, *r.buffer, rank};
    std::map<std::string, Reference> references;
    for (int step = 0; step < kSteps; ++step) {
      training.run_step(step);
      for (const PowerSgdState& state : r.buffer->power_sgd_states()) {
        const Param& param = *state.param;
        const i64 columns = param.box.shape.back();
        const auto count = static_cast<std::size_t>(param.numel());
        Reference& reference = references
                                   .try_emplace(param.name, Reference{param.numel() / columns, columns,
                                                                      std::vector<Numbers>(kRanks, Numbers(count)),
                                                                      directions(columns, r.device)})
                                   .first->second;
        std::vector<Numbers> gradients;
        for (int w = 0; w < kRanks; ++w) gradients.push_back(made_up_grads(param, step, w));
        const Numbers expected = reference.step(gradients, r.device), sum = test::to_doubles(param.main_grad);
        for (std::size_t i = 0; i < sum.size(); ++i)
          ASSERT_NEAR(sum[i], expected[i], 2e-5) << param.name << " " << step;
      }
      r.end_step();
      for (const PowerSgdState& state : r.buffer->power_sgd_states()) {
        const Numbers error = test::to_doubles(state.error),
                      &expected = references.at(state.param->name).errors[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < error.size(); ++i) ASSERT_NEAR(error[i], expected[i], 2e-5) << state.param->name;
      }
    }
    EXPECT_EQ(references.size(), 2U) << "not the embedding";
  });
}

/// The part that factors cannot represent is deferred: the sums of all steps plus the remaining errors of the ranks
/// must equal the sum of all gradients.
TEST(PowerSgdTest, DeferredErrorsAndSumsAddUpToGradients) {
  for (const int stage : {0, 1}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      Rank r(world, stage);
      ToyTraining training{r.model, *r.buffer, rank, 2};
      std::map<std::string, Numbers> sums;
      constexpr int kSteps = 5;
      for (int step = 0; step < kSteps; ++step) {
        training.run_step(step);
        for (const PowerSgdState& state : r.buffer->power_sgd_states()) {
          Numbers& sum = sums[state.param->name];
          const Numbers grads = test::to_doubles(state.param->main_grad);  // replicated on every rank
          sum.resize(grads.size());
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += grads[i];
        }
        r.end_step();
      }
      const ToySum<double> all{.layout = {2, 1}, .microbatches = 2};
      for (const PowerSgdState& state : r.buffer->power_sgd_states()) {
        Tensor left = Tensor::like(state.error);
        ops::copy(state.error, left);
        world.all_reduce(left, ReduceOp::Sum).wait();
        const Numbers errors = test::to_doubles(left);
        for (std::size_t i = 0; i < errors.size(); ++i) {
          double expected = 0;
          for (int step = 0; step < kSteps; ++step) expected += all(step, *state.param, static_cast<i64>(i));
          ASSERT_NEAR(sums[state.param->name][i] + errors[i], expected, 1e-4);
        }
      }
    });
  }
}

/// Exact reductions equal those of a buffer without factors, and leave the stored errors unchanged.
TEST(PowerSgdTest, MayStartAfterExactSteps) {
  constexpr int kFull = 2;
  for (const int stage : {0, 1}) {
    run_local_ranks(2, [&](Communicator& world, int rank) {
      Rank late(world, stage), factors(world, stage);
      ToyTraining training{late.model, *late.buffer, rank, 2}, other{factors.model, *factors.buffer, rank, 2};
      const ToySum<double> all{.layout = {2, 1}, .microbatches = 2};
      for (int step = 0; step < 4; ++step) {
        late.buffer->set_exact_reduction(step < kFull);
        training.run_step(step);
        if (step < kFull) {
          late.buffer->visit_grads([&](const Param& param, i64 first, const Tensor& values) {
            for (i64 i = 0; i < values.numel(); ++i)
              ASSERT_NEAR(values.data<float>()[i], all(step, param, first + i), 1e-5);
          });
        } else {
          other.run_step(step);
          factors.end_step();
        }
        late.end_step();
        EXPECT_EQ(late.errors(), factors.errors());
      }
      EXPECT_NE(late.errors(), Numbers(late.errors().size(), 0.0));
    });
  }
}

/// A sum whose rank does not exceed that of the factors must be found immediately.
TEST(PowerSgdTest, RecoversLowRankSumsExactly) {
  run_local_ranks(2, [&](Communicator& world, int rank) {
    Rank r(world, 0);
    const auto value = [&](int w, i64 i, i64 columns) {
      return static_cast<double>((i / columns + 1) * (2 * (i % columns) + 1 + w)) / 100;  // rank 2 over both ranks
    };
    for (int step = 0; step < 2; ++step) {
      test::reduce_gradients(r.model, *r.buffer, [&](const Param& param, Tensor& sum) {
        for (i64 i = 0; i < sum.numel(); ++i)
          sum.data<float>()[i] = static_cast<float>(value(rank, i, param.box.shape.back()));
      });
      r.end_step();
      for (const PowerSgdState& state : r.buffer->power_sgd_states()) {
        const Numbers sum = test::to_doubles(state.param->main_grad);
        const i64 columns = state.param->box.shape.back();
        for (std::size_t i = 0; i < sum.size(); ++i) {
          const auto at = static_cast<i64>(i);
          ASSERT_NEAR(sum[i], value(0, at, columns) + value(1, at, columns), 1e-5 * static_cast<double>(sum.size()));
        }
      }
    }
  });
}

TEST(PowerSgdTest, IsBitwiseIdenticalOnAllRanksAndStages) {
  std::map<std::string, Numbers> first;
  std::mutex mutex;
  for (const auto& [stage, overlap] : {std::pair(0, true), {0, false}, {1, true}, {1, false}}) {
    run_local_ranks(3, [&, zero = stage, ahead = overlap](Communicator& world, int rank) {
      Rank r(world, zero, ahead);
      ToyTraining training{r.model, *r.buffer, rank};
      for (int step = 0; step < 3; ++step) {
        training.run_step(step);
        r.end_step();
      }
      const std::lock_guard lock(mutex);
      r.buffer->visit_grads([&](const Param& param, i64 begin, const Tensor& values) {
        Numbers& whole = first[param.name];
        whole.resize(static_cast<std::size_t>(param.numel()), std::nan(""));
        const Numbers part = test::to_doubles(values);
        for (std::size_t i = 0; i < part.size(); ++i) {
          double& known = whole[static_cast<std::size_t>(begin) + i];
          if (std::isnan(known)) known = part[i];
          EXPECT_EQ(known, part[i]) << param.name << " at stage " << zero;
        }
      });
    });
  }
}

TEST(PowerSgdTest, SkippedStepDoesNotAffectLaterSteps) {
  run_local_ranks(2, [&](Communicator& world, int rank) {
    Rank r(world, 1), other(world, 1);
    ToyTraining training{r.model, *r.buffer, rank}, without{other.model, *other.buffer, rank};
    for (const int step : {0, 1}) {
      training.run_step(step), without.run_step(step);
      r.end_step(), other.end_step();
    }
    training.run_step(2);
    r.end_step(std::numeric_limits<double>::infinity());
    EXPECT_EQ(r.errors(), other.errors());
    training.run_step(3), without.run_step(3);
    r.end_step(), other.end_step();
    EXPECT_EQ(r.errors(), other.errors());
  });
}

/// A matrix [rows, columns] all-reduces kRank (rows + columns) elements, everything else each element.
TEST(PowerSgdTest, SendsVolumeOfFormula) {
  for (const int ranks : {2, 4}) {
    run_local_ranks(ranks, [&, d = ranks](Communicator& world, int rank) {
      Rank r(world, 0);
      ToyTraining training{r.model, *r.buffer, rank, 3};
      training.run_step(0);
      r.meter->reset();
      training.run_step(1);
      i64 elements = 0;
      for (const ToyModel::Entry& e : r.model.entries) {
        const Shape& shape = e.param.box.shape;
        elements += is_low_rank(e.param, kRank) ? kRank * (shape[0] + shape[1]) : e.param.numel();
      }
      const i64 bytes = 2 * 4 * elements * (d - 1) / d;
      EXPECT_LE(r.meter->total_bytes(), bytes);
      EXPECT_GE(r.meter->total_bytes(), bytes - 6) << "each call is rounded down";
      EXPECT_EQ(r.meter->total_bytes(), (*r.meter)[CommOp::AllReduce].bytes);
    });
  }
}

/// Each group of replicas factorizes its own sum. These sums are reduced exactly.
TEST(PowerSgdTest, SupportsHybridSharding) {
  run_local_ranks(4, [&](Communicator& world, int rank) {
    Rank r(world, 1, true, {2, 2});
    ToyTraining training{r.model, *r.buffer, rank};
    training.run_step(0);
    r.end_step();
    Tensor squares = Tensor::zeros({1}, DType::F64, r.device, MemoryClass::Other);
    for (const ShardSegment& segment : r.buffer->shard()) *squares.data<double>() += ops::sum_of_squares(segment.grads);
    Tensor max_squares = Tensor::zeros({1}, DType::F64, r.device, MemoryClass::Other);
    *max_squares.data<double>() = *squares.data<double>();
    r.groups.replicate->all_reduce(max_squares, ReduceOp::Max).wait();
    EXPECT_EQ(*max_squares.data<double>(), *squares.data<double>()) << "replicas differ";
    EXPECT_GT(*squares.data<double>(), 0);
  });
}

}  // namespace
}  // namespace mcpp
