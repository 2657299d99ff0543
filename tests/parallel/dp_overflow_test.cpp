// A step with a non-finite gradient has no effect on the next one: its sums are bitwise identical to those of a run
// without that step. Covers every ZeRO stage and every format in which gradients are reduced.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>

#include "comm/local.h"
#include "parallel/dp/zero.h"
#include "tests/support/layouts/dp_toy.h"

namespace mcpp::dp_overflow_test {
namespace {

using test::DpGroups;
using test::DpLayout;
using test::ToyModel;

struct Reduction {
  int zero_stage = 0;
  GradReduceFormat format = GradReduceFormat::Full;
  i64 power_sgd_rank = 0;
  DpLayout layout = {3, 1};
};

/// One rank of a data-parallel model with parameter sizes just below and above multiples of 64.
class OverflowRank {
 public:
  OverflowRank(Communicator& world, const Reduction& reduction)
      : rank_(world.rank()), groups_(world, reduction.layout) {
    model_.add("aligned.weight", {64, 2}, 4);
    Layout layout{.zero_stage = reduction.zero_stage,
                  .formats = {.power_sgd_rank = reduction.power_sgd_rank},
                  .bucket_size = 400};
    layout.formats.set_grad_reduce_format(reduction.format);
    buffer_ = make_param_and_grad_buffer(model_.unit_params(), DType::F32, device_, groups_.refs(), layout);
  }

  /// Runs a step; if `poison` is set, one rank writes it to the last element of `poisoned`.
  void run_step(int step, const std::string& poisoned = "", double poison = 0) {
    test::reduce_gradients(model_, *buffer_, [&](const Param& param, const Tensor& sum) {
      for (i64 i = 0; i < param.numel(); ++i)
        sum.data<float>()[i] = test::made_up_grad(step, 0, rank_, 0, param.name, i);
      if (rank_ == 1 && param.name == poisoned) sum.data<float>()[param.numel() - 1] = static_cast<float>(poison);
    });
    Tensor factor = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Other);
    *factor.data<double>() = poisoned.empty() ? 1 : std::nan("");
    buffer_->end_step(factor);
  }

  bool has_nonfinite_sums() const {
    bool found = false;
    buffer_->visit_grads([&](const Param&, i64, const Tensor& values) {
      for (i64 i = 0; i < values.numel(); ++i) found |= !std::isfinite(values.data<float>()[i]);
    });
    return found;
  }
  std::map<std::pair<std::string, i64>, float> sums() const {
    std::map<std::pair<std::string, i64>, float> all;
    buffer_->visit_grads([&](const Param& param, i64 first, const Tensor& values) {
      for (i64 i = 0; i < values.numel(); ++i) all[{param.name, first + i}] = values.data<float>()[i];
    });
    return all;
  }

 private:
  int rank_;
  CpuDevice device_;
  ToyModel model_;
  DpGroups groups_;
  std::unique_ptr<ParamAndGradBuffer> buffer_;
};

class GradOverflowTest : public testing::TestWithParam<Reduction> {};

TEST_P(GradOverflowTest, DoesNotAffectNextStep) {
  for (const double poison : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const char* poisoned :
         {"embedding.weight", "layer1.weight", "layer2.bias", "output.weight", "norm.weight", "aligned.weight"}) {
      std::atomic<int> ranks_with_overflow = 0;
      run_local_ranks(GetParam().layout.ranks(), [&](Communicator& world, int) {
        OverflowRank clean(world, GetParam()), overflowed(world, GetParam());
        overflowed.run_step(0, poisoned, poison);
        ranks_with_overflow += overflowed.has_nonfinite_sums();
        for (const int step : {1, 2}) {
          clean.run_step(step);
          overflowed.run_step(step);
          EXPECT_EQ(overflowed.sums(), clean.sums()) << poisoned << ", step " << step;
        }
      });
      EXPECT_GT(ranks_with_overflow, 0) << poisoned;
    }
  }
}

constexpr GradReduceFormat kFull = GradReduceFormat::Full, kBf16 = GradReduceFormat::Bf16,
                           kByte = GradReduceFormat::Int8;
INSTANTIATE_TEST_SUITE_P(All, GradOverflowTest,
                         testing::Values(Reduction{0, kFull}, Reduction{0, kFull, 2}, Reduction{1, kFull},
                                         Reduction{1, kFull, 2}, Reduction{1, kBf16}, Reduction{1, kByte},
                                         Reduction{1, kByte, 0, {4, 1, 2}}, Reduction{1, kByte, 0, {2, 2}},
                                         Reduction{2, kFull}, Reduction{2, kBf16}, Reduction{2, kByte},
                                         Reduction{2, kByte, 0, {4, 1, 2}}, Reduction{3, kFull}, Reduction{3, kBf16},
                                         Reduction{3, kByte}, Reduction{3, kByte, 0, {4, 1, 2}},
                                         Reduction{3, kBf16, 0, {2, 2}}));

}  // namespace
}  // namespace mcpp::dp_overflow_test
