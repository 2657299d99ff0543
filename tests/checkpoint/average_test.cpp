#include "checkpoint/load/average.h"

#include <limits>
#include <numeric>

#include "checkpoint/load/copy.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

class AverageTest : public CheckpointTest {
 protected:
  /// Returns value `i` of tensor `seed` of a checkpoint: about 1 in magnitude, with all bits of fp32 in use.
  static double value(i64 checkpoint, i64 seed, i64 i) {
    return static_cast<float>(
        std::sin(static_cast<double>(1 + i) * (0.7 + 0.1 * static_cast<double>(checkpoint + 7 * seed))));
  }
  NamedShard drawn(const std::string& name, const Region& region, DType dtype, i64 checkpoint, i64 seed) {
    NamedShard shard(name, region.box, region.flat_begin, region.flat_end,
                     Tensor::empty({region.numel()}, dtype, device_, MemoryClass::Other));
    for_each_run(full_region({region.box.global, Shape(region.box.global.size(), 0), region.box.global}), region,
                 [&](i64 from, i64 to, i64 count) {
                   for (i64 i = 0; i < count; ++i) store(shard.data, to + i, value(checkpoint, seed, from + i));
                 });
    return shard;
  }
  static Region whole(const Shape& shape) { return full_region({shape, Shape(shape.size(), 0), shape}); }

  /// Saves a checkpoint of a matrix, divided by rows or by columns, and a vector.
  Path save_model(i64 checkpoint, bool by_rows, DType dtype = DType::F32, bool has_master = false) {
    const Shape shape{6, 10};
    std::vector<NamedShard> shards{drawn("model/norm", whole({5}), dtype, checkpoint, 1)};
    const Box first = by_rows ? Box{shape, {0, 0}, {2, 10}} : Box{shape, {0, 0}, {6, 3}};
    const Box second = by_rows ? Box{shape, {2, 0}, {4, 10}} : Box{shape, {0, 3}, {6, 7}};
    for (const Box& box : {first, second}) {
      shards.push_back(drawn("model/matrix", full_region(box), dtype, checkpoint, 0));
      shards.push_back(drawn("optimizer/exp_avg/matrix", full_region(box), DType::F32, checkpoint, 2));
      if (has_master) shards.push_back(drawn("optimizer/master/matrix", full_region(box), DType::F32, checkpoint, 0));
    }
    if (has_master) shards.push_back(drawn("optimizer/master/norm", whole({5}), DType::F32, checkpoint, 1));
    return save(checkpoint, shards);
  }

  /// Averages checkpoints, saves the result and returns a reader of it.
  CheckpointReader average(const std::vector<Path>& paths, const std::vector<double>& coefficients,
                           DType sum_dtype = DType::F64) {
    std::vector<std::unique_ptr<CheckpointReader>> readers;
    std::vector<AverageTerm> terms;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      readers.push_back(std::make_unique<CheckpointReader>(paths[i]));
      terms.push_back({readers.back().get(), coefficients[i]});
    }
    AveragedWeights source(terms, sum_dtype, "master");
    return CheckpointReader(save_checkpoint(scratch_ / "average", {.iteration = 9}, source, *self_, log_));
  }
  std::string error_of_average(const std::vector<Path>& paths) {
    return error_of([&] { average(paths, uniform_coefficients(paths.size())); });
  }
};

TEST_F(AverageTest, MatchesFp64SumForAnyLayouts) {
  const std::vector<Path> paths{save_model(1, true), save_model(2, false), save_model(3, true)};
  const std::vector<double> coefficients{0.5, 0.2, 0.3};
  for (const DType sum : {DType::F64, DType::F32}) {
    CheckpointReader result = average(paths, coefficients, sum);
    ASSERT_EQ(result.manifest().tensors.size(), 2u) << "no optimizer states";
    for (const auto& [name, seed] : {std::pair{"model/matrix", 0}, {"model/norm", 1}}) {
      const Tensor values = result.read_full_tensor(name, device_);
      ASSERT_EQ(values.dtype(), DType::F32);
      for (i64 i = 0; i < values.numel(); ++i) {
        double expected = 0;
        for (i64 c = 0; c < 3; ++c) expected += coefficients[static_cast<std::size_t>(c)] * value(c + 1, seed, i);
        const double exact = sum == DType::F64 ? static_cast<float>(expected) : expected;
        EXPECT_NEAR(load(values, i), exact, sum == DType::F64 ? 0 : 3e-7) << name << " " << i;
      }
    }
  }
}

/// A mean of bf16 weights would round each of them first.
TEST_F(AverageTest, SumsMasterWeightsAndRoundsOnce) {
  const std::vector<Path> paths{save_model(1, true, DType::BF16, true), save_model(2, false, DType::BF16, true)};
  CheckpointReader result = average(paths, {0.5, 0.5});
  EXPECT_FALSE(result.has("optimizer/master/matrix"));
  const Tensor values = result.read_full_tensor("model/matrix", device_);
  ASSERT_EQ(values.dtype(), DType::BF16);
  i64 rounded_twice = 0;
  for (i64 i = 0; i < values.numel(); ++i) {
    const auto bf16 = [](double x) { return to_double(from_double<BFloat16>(x)); };
    const double a = value(1, 0, i), b = value(2, 0, i);
    EXPECT_EQ(load(values, i), bf16(0.5 * a + 0.5 * b));
    rounded_twice += bf16(0.5 * bf16(a) + 0.5 * bf16(b)) != bf16(0.5 * a + 0.5 * b);
  }
  EXPECT_GT(rounded_twice, 0);
}

/// One of the checkpoints has no master weights.
TEST_F(AverageTest, SumsWeightsUnlessAllHaveMasterWeights) {
  const std::vector<Path> paths{save_model(1, true, DType::BF16, true), save_model(2, false, DType::BF16)};
  const Tensor values = average(paths, {1, 0}).read_full_tensor("model/norm", device_);
  for (i64 i = 0; i < 5; ++i) EXPECT_EQ(load(values, i), to_double(from_double<BFloat16>(value(1, 1, i))));
}

TEST_F(AverageTest, UsesMemoryOfPiecesAndReadsTensorsLongerThanAPiece) {
  const i64 count = 2 * kCopiedPiece + 77;
  const std::vector<Path> paths{save(1, std::vector{numbered("model/long", {count})}),
                                save(2, std::vector{numbered("model/long", {count}, DType::F32, 6)})};
  CheckpointReader first(paths[0]), second(paths[1]);
  AveragedWeights source({{&first, 0.5}, {&second, 0.5}}, DType::F64, "master");
  ASSERT_EQ(source.shards().size(), 3u);
  for (const ShardSpec& shard : source.shards()) EXPECT_LE(shard.numel(), kCopiedPiece);
  const Path path = save_checkpoint(scratch_ / "average", {.iteration = 9}, source, *self_, log_);
  const Tensor values = CheckpointReader(path).read_full_tensor("model/long", device_);
  ASSERT_EQ(values.numel(), count);
  // Sums of whole numbers below 2^24 are exact.
  for (const i64 i : {i64{0}, kCopiedPiece - 1, kCopiedPiece, count - 1})
    EXPECT_EQ(load(values, i), static_cast<double>(i + 3)) << i;
}

TEST_F(AverageTest, CoefficientsAreThoseOfMeansAndMovingAverages) {
  EXPECT_EQ(uniform_coefficients(4), std::vector<double>(4, 0.25));
  const std::vector<double> ema = ema_coefficients(4, 0.8);
  double average = 3;  // of the values 3, 5, -1, 2, one after the other
  for (const double next : {5.0, -1.0, 2.0}) average = 0.8 * average + 0.2 * next;
  EXPECT_NEAR(ema[0] * 3 + ema[1] * 5 + ema[2] * -1 + ema[3] * 2, average, 1e-15);
  EXPECT_NEAR(std::accumulate(ema.begin(), ema.end(), 0.0), 1, 1e-15);
}

TEST_F(AverageTest, RejectsCheckpointsOfOtherModels) {
  const Path a = save_model(1, true);
  const Path shape = save(2, std::vector{numbered("model/matrix", {10, 6}), numbered("model/norm", {5})});
  EXPECT_CONTAINS(error_of_average({a, shape}),
                  shape.string() + ": model/matrix is fp32 [10, 6], but fp32 [6, 10] in ");
  const Path type = save_model(3, true, DType::BF16);
  EXPECT_CONTAINS(error_of_average({a, type}), type.string() + ": model/matrix is bf16 [6, 10], but fp32 ");
  const Path missing = save(4, std::vector{numbered("model/matrix", {6, 10})});
  EXPECT_CONTAINS(error_of_average({a, missing}), missing.string() + " has no tensor model/norm");
  EXPECT_CONTAINS(error_of_average({missing, a}), missing.string() + " has no tensor model/norm, which ");
}

TEST_F(AverageTest, RejectsDamagedAndNonFiniteWeightsAndLeavesNothing) {
  const Path a = save_model(1, true), b = save_model(2, true), c = save_model(3, true);
  const Path file = b / "shard_00000-of-00001.h5";
  std::string bytes = read_text_file(file);
  for (std::size_t i = bytes.size() / 4; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(bytes[i] ^ 0x40);
  overwrite(file, bytes);
  EXPECT_CONTAINS(error_of_average({a, b}), file.string());
  NamedShard bad = numbered("model/norm", {5});
  bad.data.data<float>()[3] = std::numeric_limits<float>::infinity();
  const Path infinite = save(4, std::vector{bad, numbered("model/matrix", {6, 10})});
  EXPECT_CONTAINS(error_of_average({a, c, infinite}),
                  infinite.string() + ": model/norm has NaN or infinite values; leave this checkpoint out");
  EXPECT_TRUE(checkpoints_in(scratch_ / "average").empty());
  EXPECT_TRUE(!std::filesystem::exists(scratch_ / "average") || std::filesystem::is_empty(scratch_ / "average"));
}

}  // namespace
}  // namespace mcpp
