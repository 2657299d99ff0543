// Layers of tensor parallelism compared with the same layer on one rank, in fp64.
#include <gtest/gtest.h>

#include <map>

#include "comm/local.h"
#include "parallel/tp/linear.h"
#include "parallel/tp/mappings.h"
#include "parallel/tp/vocab_parallel.h"
#include "tests/support/boxes.h"
#include "tests/support/errors.h"

namespace mcpp::tp_linear_test {
namespace {

using test::Numbers;

constexpr i64 kSeq = 8, kBatch = 3, kIn = 12, kOut = 16;
constexpr double kTolerance = 1e-12;

struct Variant {
  bool bias, skip_bias_add, sequence_parallel, whole_columns, delay_wgrad_compute;
};

std::string name_of(const Variant& v) {
  return str(v.bias ? "bias " : "", v.skip_bias_add ? "skip_bias_add " : "",
             v.sequence_parallel ? "sequence_parallel " : "", v.whole_columns ? "whole_columns " : "",
             v.delay_wgrad_compute ? "defers_weights " : "");
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const bool bias : {false, true})
    for (const bool skip : {false, true})
      for (const bool sequence_parallel : {false, true})
        for (const bool whole : {false, true})
          for (const bool defers : {false, true}) all.push_back({bias, skip, sequence_parallel, whole, defers});
  return all;
}

LinearOptions options_of(const Variant& v) {
  return {.bias = v.bias, .skip_bias_add = v.skip_bias_add, .sequence_parallel = v.sequence_parallel};
}

/// Allocates parameters with random values, including biases, and gradients that must be overwritten.
void allocate(Module& module, Device& device) {
  module.visit([&](Param& param) {
    param.init = Init::Normal;
    param.init_std = 0.5;
    param.value = Tensor::empty(param.box.shape, DType::F64, device);
    param.main_grad = test::garbage(param.box.shape, DType::F64, device);
    initialize(param, 3);
  });
}

Tensor part(const Numbers& whole, const Box& box, Device& device) {
  return test::tensor_of(test::part_of(whole, box), box.shape, DType::F64, device);
}

struct PassResult {
  Tensor y, dx;
  std::map<std::string, Param*> params;
};

PassResult run(Module& module, const Tensor& x, const Tensor& dy, bool delay_wgrad_compute) {
  MicrobatchContext context;
  context.delay_wgrad_compute = delay_wgrad_compute;
  PassResult result;
  result.y = module.forward(x, context);
  result.dx = module.backward(dy, context);
  context.run_delayed_wgrads();
  EXPECT_TRUE(context.saved_tensors.empty());
  module.visit([&](Param& param) { result.params[param.name] = &param; });
  return result;
}

const Numbers kX = test::normals(kSeq * kBatch * kIn, 1), kDy = test::normals(kSeq * kBatch * kOut, 2);

/// Runs the layer with the options on one rank and on `ranks`, and compares the parts of each rank. An axis of -1 means
/// unsharded.
template <class Layer>
void expect_same(int ranks, const Variant& v, const std::function<std::unique_ptr<Layer>(Communicator&)>& make,
                 int x_axis, int y_axis) {
  CpuDevice device;
  const auto self = make_self_communicator();
  const Box x_box = split_box({kSeq, kBatch, kIn}, 0, *self), y_box = split_box({kSeq, kBatch, kOut}, 0, *self);
  const auto whole = make(*self);
  allocate(*whole, device);
  const PassResult expected = run(*whole, part(kX, x_box, device), part(kDy, y_box, device), false);
  const Numbers y = test::to_doubles(expected.y), dx = test::to_doubles(expected.dx);

  run_local_ranks(ranks, [&](Communicator& tp, int) {
    CpuDevice own_device;
    const Box own_x = x_axis < 0 ? x_box : split_box(x_box.shape, x_axis, tp);
    const Box own_y = y_axis < 0 ? y_box : split_box(y_box.shape, y_axis, tp);
    const auto layer = make(tp);
    allocate(*layer, own_device);
    const PassResult actual =
        run(*layer, part(kX, own_x, own_device), part(kDy, own_y, own_device), v.delay_wgrad_compute);
    EXPECT_EQ(actual.y.shape(), own_y.shape);
    test::expect_part(actual.y, y, own_y, kTolerance, "y " + name_of(v));
    test::expect_part(actual.dx, dx, own_x, kTolerance, "dx " + name_of(v));
    EXPECT_EQ(actual.params.size(), expected.params.size());
    for (const auto& [name, param] : actual.params) {
      EXPECT_NE(param->placement.tp.spread, Spread::Partial) << name;
      test::expect_part(param->main_grad, test::to_doubles(expected.params.at(name)->main_grad), param->box, kTolerance,
                        name + " " + name_of(v));
    }
  });
}

class ParallelLinearTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ParallelLinearTest, testing::Values(1, 2, 4));

TEST_P(ParallelLinearTest, ColumnParallelMatchesUnshardedLayer) {
  for (const Variant& v : variants()) {
    expect_same<ColumnParallelLinear>(
        GetParam(), v,
        [&](Communicator& tp) {
          return std::make_unique<ColumnParallelLinear>("column", kIn, Shape{kOut}, 0, tp, options_of(v),
                                                        v.whole_columns);
        },
        v.sequence_parallel ? 0 : -1, v.whole_columns ? -1 : 2);
  }
}

TEST_P(ParallelLinearTest, RowParallelMatchesUnshardedLayer) {
  for (const Variant& v : variants()) {
    expect_same<RowParallelLinear>(
        GetParam(), v,
        [&](Communicator& tp) {
          return std::make_unique<RowParallelLinear>("row", kIn, kOut, tp, options_of(v), !v.whole_columns);
        },
        v.whole_columns ? -1 : 2, v.sequence_parallel ? 0 : -1);
  }
}

TEST_P(ParallelLinearTest, MarksParametersReplicatedOnAllRanks) {
  run_local_ranks(GetParam(), [](Communicator& tp, int) {
    ColumnParallelLinear column("column", kIn, {kOut}, 0, tp, {});
    column.visit([](Param& param) { EXPECT_EQ(param.placement.tp.spread, Spread::Shard) << param.name; });
    RowParallelLinear row("row", kIn, kOut, tp, {});
    row.visit([&](Param& param) {
      EXPECT_EQ(param.placement.tp.copies(tp.size()), param.name == "row.bias" ? tp.size() : 1) << param.name;
    });
  });
}

TEST_P(ParallelLinearTest, VocabParallelEmbeddingMatchesUnshardedTable) {
  constexpr i64 kVocab = 20;
  CpuDevice device;
  std::vector<i32> tokens(kSeq * kBatch);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<i32>(philox_key(5, "token", i) % kVocab);
  const auto self = make_self_communicator();
  const Box whole = split_box({kSeq, kBatch, kOut}, 0, *self);
  const auto tokens_on = [&](Device& d) { return test::integers_of(tokens, d).view({kSeq, kBatch}); };
  VocabParallelEmbedding expected("words", kVocab, kOut, *self, 0.1);
  allocate(expected, device);
  const Numbers y = test::to_doubles(run(expected, tokens_on(device), part(kDy, whole, device), false).y);
  const Numbers gradient = test::to_doubles(expected.weight().main_grad);

  for (const Variant& v : variants()) {
    run_local_ranks(GetParam(), [&](Communicator& tp, int) {
      CpuDevice own_device;
      VocabParallelEmbedding words("words", kVocab, kOut, tp, 0.1, v.sequence_parallel);
      allocate(words, own_device);
      const Box box = v.sequence_parallel ? split_box(whole.shape, 0, tp) : whole;
      const PassResult actual = run(words, tokens_on(own_device), part(kDy, box, own_device), v.delay_wgrad_compute);
      test::expect_part(actual.y, y, box, kTolerance, "y " + name_of(v));
      test::expect_part(words.weight().main_grad, gradient, words.weight().box, kTolerance, "gradient " + name_of(v));
    });
  }
}

TEST(ParallelLinearErrorTest, RejectsIndivisibleSizes) {
  run_local_ranks(2, [](Communicator& tp, int) {
    CpuDevice device;
    EXPECT_NE(test::error_of([&] { ColumnParallelLinear("l", 4, {3}, 0, tp, {}); }), "");
    EXPECT_NE(test::error_of([&] { ColumnParallelLinear("l", 4, {2, 4}, 1, tp, {}, true); }), "");
    const Tensor odd = Tensor::zeros({3, 1, 1}, DType::F32, device);
    EXPECT_NE(test::error_of([&] { reduce_scatter_to_sequence_parallel_region(odd, tp); }), "");
    EXPECT_NE(test::error_of([&] { scatter_to_tensor_parallel_region(odd, tp); }), "");
  });
}

}  // namespace
}  // namespace mcpp::tp_linear_test
