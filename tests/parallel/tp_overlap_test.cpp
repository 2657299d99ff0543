// Linear layers that overlap their communication with their GEMMs give bitwise the results of layers that do not.
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "comm/local.h"
#include "comm/metered.h"
#include "parallel/tp/linear.h"
#include "tensor/cpu/gemm/gemm.h"
#include "tests/support/boxes.h"

namespace mcpp::tp_overlap_test {
namespace {

using test::Numbers;

struct Case {
  std::string name;
  i64 seq, batch;  ///< of a rank's part with sequence parallelism, otherwise of all ranks
  DType dtype = DType::F32;
  std::optional<GemmRecipe> recipe = {};
  i64 in = 96, out = 160;  ///< per rank if sharded, otherwise in total
};

const std::vector<Case> kCases{
    {"four chunks", 64, 2},
    {"uneven chunks", 37, 3},
    {"two chunks", 24, 3},
    {"too few rows", 5, 2},
    {"one position", 1, 40},
    {"rows of 2 KiB", 48, 2, DType::F32, {}, 512, 512},
    {"fewest rows of a large matrix", 2 * (kernel::kFewRowsOfLargeMatrix + 1), 1, DType::F32, {}, 768, 768},
    {"bf16", 37, 2, DType::BF16},
    {"fp16", 32, 4, DType::F16},
    {"fp64", 35, 2, DType::F64},
    {"tensorwise", 64, 1, DType::BF16, GemmRecipe::Tensorwise},
    {"blockwise", 32, 2, DType::BF16, GemmRecipe::Blockwise, 128, 128},
    {"mxfp8", 32, 2, DType::BF16, GemmRecipe::Mxfp8, 64, 96},
    {"nvfp4", 32, 2, DType::BF16, GemmRecipe::Nvfp4, 64, 96}};

struct Variant {
  bool is_row_parallel, sequence_parallel, delay_wgrad_compute, gelu;
};

std::string name_of(const Variant& v) {
  return str(v.is_row_parallel ? "row" : "column", v.sequence_parallel ? " sequence" : "",
             v.delay_wgrad_compute ? " deferred" : "", v.gelu ? " gelu" : "");
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const bool is_row_parallel : {false, true})
    for (const bool sequence_parallel : {false, true})
      for (const bool defers : {false, true})
        for (const bool gelu : {false, true}) all.push_back({is_row_parallel, sequence_parallel, defers, gelu});
  return all;
}

Tensor random_tensor(const Shape& shape, DType dtype, u64 seed, Device& device) {
  return test::tensor_of(test::normals(numel(shape), seed, dtype), shape, dtype, device);
}

/// Runs forward and backward of a layer on one rank. Returns all results.
class LayerRun {
 public:
  LayerRun(Communicator& tp, const Case& c, const Variant& v, bool overlaps) : tp_(tp), case_(c), variant_(v) {
    const LinearOptions options{.bias = true,
                                .skip_bias_add = v.gelu,
                                .sequence_parallel = v.sequence_parallel,
                                .tp_comm_overlap = overlaps,
                                .fp8 = recipe()};
    const i64 in = c.in * (v.is_row_parallel ? tp.size() : 1), out = c.out * (v.is_row_parallel ? 1 : tp.size());
    const auto allocate = [&](Module& layer) {
      layer.visit([&](Param& param) {
        param.value = random_tensor(param.box.shape, c.dtype, philox_key(5, param.name, tp.rank()), device_);
        param.main_grad = test::garbage(param.box.shape, accumulate_dtype(c.dtype), device_);
      });
    };
    context_.delay_wgrad_compute = v.delay_wgrad_compute;
    for (i64 sample = 0; sample < c.batch; ++sample) context_.samples.push_back(sample);
    if (v.is_row_parallel) {
      RowParallelLinear layer("row", in, out, tp, options);
      allocate(layer);
      run_row(layer);
      collect(layer);
    } else {
      ColumnParallelLinear layer("column", in, {out}, 0, tp, options);
      allocate(layer);
      run_column(layer);
      collect(layer);
    }
  }

  std::map<std::string, Numbers> results;

 private:
  std::optional<Fp8Recipe> recipe() const {
    if (!case_.recipe) return std::nullopt;
    return Fp8Recipe{.passes = PassRecipes::of(*case_.recipe), .holders = {&tp_}, .seed = 3};
  }
  i64 full_seq() const { return case_.seq * (variant_.sequence_parallel ? tp_.size() : 1); }
  /// Returns an input outside the region: with sequence parallelism different on each rank, otherwise the same.
  Tensor outer(i64 columns, u64 seed) {
    const u64 key = seed + (variant_.sequence_parallel ? 100 * static_cast<u64>(tp_.rank()) : 0);
    return random_tensor({case_.seq, case_.batch, columns}, case_.dtype, key, device_);
  }
  Tensor inner(i64 columns, u64 seed) {
    return random_tensor({full_seq(), case_.batch, columns}, case_.dtype, seed + 100 * static_cast<u64>(tp_.rank()),
                         device_);
  }
  void run_column(ColumnParallelLinear& layer) {
    const Tensor x = outer(case_.in, 1);
    Tensor u;
    keep("y", variant_.gelu ? layer.forward_gelu(x, context_, u) : layer.forward(x, context_));
    if (u.defined()) keep("u", u);
    keep("dx", layer.backward(inner(case_.out, 2), context_));
  }
  void run_row(RowParallelLinear& layer) {
    keep("y", layer.forward(inner(case_.in, 1), context_));
    const Tensor dy = outer(case_.out, 2);
    keep("dx", variant_.gelu ? layer.backward_gelu(dy, context_, [&] { return inner(case_.in, 3); })
                             : layer.backward(dy, context_));
  }
  void keep(const std::string& name, const Tensor& x) { results[name] = test::to_doubles(x); }
  void collect(Module& layer) {
    context_.run_delayed_wgrads();
    EXPECT_TRUE(context_.saved_tensors.empty());
    layer.visit([&](Param& param) { keep(param.name, param.main_grad); });
  }

  Communicator& tp_;
  const Case& case_;
  const Variant& variant_;
  CpuDevice device_;
  MicrobatchContext context_;
};

class TpOverlapTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, TpOverlapTest, testing::Values(2, 4));

TEST_P(TpOverlapTest, IsBitwiseIdenticalToSerialCommunication) {
  for (const Case& c : kCases) {
    for (const Variant& v : variants()) {
      if (v.gelu && c.recipe) continue;  // not supported
      SCOPED_TRACE(str(c.name, ": ", name_of(v)));
      run_local_ranks(GetParam(), [&](Communicator& tp, int) {
        const LayerRun serial(tp, c, v, false), overlapped(tp, c, v, true);
        EXPECT_EQ(serial.results, overlapped.results) << c.name << ": " << name_of(v);
      });
      if (HasFailure()) return;
    }
  }
}

/// Counts the calls of a layer with `seq` positions.
CommMeter meter_of(Communicator& tp, i64 seq, const Variant& v, bool overlaps) {
  const auto meter = std::make_shared<CommMeter>();
  const auto metered = make_metered(tp.split(0, tp.rank()), meter);
  const Case c{"", seq, 2};
  const LayerRun run(*metered, c, v, overlaps);
  return *meter;
}

TEST_P(TpOverlapTest, SumsRunInChunksOfSameTotalSize) {
  run_local_ranks(GetParam(), [&](Communicator& tp, int) {
    for (const bool sequence_parallel : {false, true}) {
      const CommOp sum = sequence_parallel ? CommOp::ReduceScatter : CommOp::AllReduce;
      const Variant row{true, sequence_parallel, false, false}, deferred{false, sequence_parallel, true, false},
          column{false, sequence_parallel, false, false};
      for (const Variant& v : {row, deferred, column}) {
        const CommMeter serial = meter_of(tp, 64, v, false), overlapped = meter_of(tp, 64, v, true);
        EXPECT_EQ(serial[sum].calls, 1);
        // Unless the weight gradient is delayed, it overlaps the sum as a whole.
        EXPECT_EQ(overlapped[sum].calls, !v.is_row_parallel && !v.delay_wgrad_compute ? 1 : 4) << name_of(v);
        EXPECT_EQ(serial.total_bytes(), overlapped.total_bytes());
      }
      EXPECT_EQ(meter_of(tp, 15, row, true)[sum].calls, 1) << "30 rows are too few for two GEMMs";
      EXPECT_EQ(meter_of(tp, 48, row, true)[sum].calls, 3) << "rows of a chunk are at least 32";
    }
  });
}

}  // namespace
}  // namespace mcpp::tp_overlap_test
