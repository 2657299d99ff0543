#include <gtest/gtest.h>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/dp/zero.h"
#include "parallel/reduce_scalar.h"
#include "tensor/ops/ops.h"
#include "tests/support/layouts/dp_toy.h"

namespace mcpp::dp_zero_test {
namespace {

using test::DpGroups;
using test::DpLayout;
using test::ToyModel;
using test::ToySum;
using test::ToyTraining;

struct Case {
  DpLayout layout;
  int microbatches;
  bool overlap;
  bool is_tied;
  DType dtype = DType::F32;
};

Layout layout_with(int stage, bool overlap) {
  return {.zero_stage = stage,
          .bucket_size = 400,  // unit 4, units 1 and 2, unit 0
          .overlap_grad_reduce = overlap,
          .overlap_param_gather = overlap};
}

void set_weights(const ParamAndGradBuffer& buffer, int step) {
  buffer.visit_weights([&](Param& param, i64 first, Tensor values) {
    on_float(values.dtype(), [&]<class T>() {
      for (i64 i = 0; i < values.numel(); ++i)
        values.data<T>()[i] = from_double<T>(test::made_up_weight(step, param.name, first + i));
    });
  });
}

void expect_weights(const Param& param, int step) {
  on_float(param.value.dtype(), [&]<class T>() {
    for (i64 i = 0; i < param.numel(); ++i) {
      ASSERT_EQ(to_double(param.value.data<T>()[i]), test::made_up_weight(step, param.name, i))
          << param.name << "[" << i << "] in step " << step;
    }
  });
}

/// Checks every gradient of this rank's shard bitwise, and that padding is zero. Returns the number of checked
/// elements.
template <class T>
i64 expect_sums(const ParamAndGradBuffer& buffer, int step, const ToySum<T>& sum) {
  i64 elements = 0;
  double squares = 0, all_squares = 0;
  buffer.visit_grads([&](Param& param, i64 first, Tensor grads) {
    elements += grads.numel();
    squares += ops::sum_of_squares(grads);
    for (i64 i = 0; i < grads.numel(); ++i)
      ASSERT_EQ(grads.data<T>()[i], sum(step, param, first + i)) << param.name << "[" << first + i << "]";
  });
  for (const ShardSegment& segment : buffer.shard()) all_squares += ops::sum_of_squares(segment.grads);
  EXPECT_DOUBLE_EQ(squares, all_squares) << "padding is not zero";
  return elements;
}

class ZeroStagesTest : public testing::TestWithParam<std::tuple<int, Case>> {};

TEST_P(ZeroStagesTest, SumGradientsAndPublishNewWeights) {
  const int stage = std::get<int>(GetParam());
  Case c = std::get<Case>(GetParam());
  if (stage == 0) c.layout = {c.layout.ranks(), 1};  // shards nothing
  run_local_ranks(c.layout.ranks(), [&](Communicator& world, int rank) {
    const DpGroups groups(world, c.layout);
    CpuDevice device;
    ToyModel model;
    const auto buffer =
        make_param_and_grad_buffer(model.unit_params(), c.dtype, device, groups.refs(), layout_with(stage, c.overlap));
    EXPECT_EQ(buffer->reduces_every_microbatch(), stage >= 2);
    set_weights(*buffer, -1);
    buffer->publish();  // replaced immediately, as after loading
    ToyTraining training{model, *buffer, rank, c.microbatches, c.is_tied};
    i64 elements = 0;
    for (int step = 0; step < 3; ++step) {
      set_weights(*buffer, step);
      buffer->publish();
      training.on_forward = [&](const Param& param) { expect_weights(param, step); };
      training.run_step(step);
      const auto check = [&]<class T>() {
        elements = expect_sums<T>(*buffer, step, {c.layout, c.microbatches, c.is_tied, stage >= 2});
      };
      c.dtype == DType::F64 ? check.template operator()<double>() : check.template operator()<float>();
    }
    const double all = reduce_scalar(static_cast<double>(elements), ReduceOp::Sum, *groups.shard, device);
    EXPECT_EQ(all, static_cast<double>(model.numel()) * (stage == 0 ? c.layout.shards : 1));
    EXPECT_EQ(&buffer->replicas(), stage == 0 ? groups.shard.get() : groups.replicate.get());
  });
}

INSTANTIATE_TEST_SUITE_P(All, ZeroStagesTest,
                         testing::Combine(testing::Values(0, 1, 2, 3),
                                          testing::Values(Case{{1, 1}, 2, true, false}, Case{{2, 1}, 1, true, false},
                                                          Case{{2, 1}, 3, false, true}, Case{{3, 1}, 2, true, true},
                                                          Case{{4, 1}, 3, true, false}, Case{{2, 2}, 1, false, false},
                                                          Case{{2, 2}, 3, true, true}, Case{{1, 2}, 2, true, false},
                                                          Case{{2, 1}, 2, true, true, DType::BF16},
                                                          Case{{2, 1}, 2, true, true, DType::F16},
                                                          Case{{2, 1}, 2, true, false, DType::F64})));

}  // namespace
}  // namespace mcpp::dp_zero_test
