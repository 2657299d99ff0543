#include "checkpoint/reader.h"

#include "tests/checkpoint/fixture.h"

namespace mcpp {
namespace {

class Reader : public CheckpointTest {
 protected:
  /// Cuts the box into disjoint regions: at random places along random axes, some pieces again into flat ranges.
  void cut(const Box& box, int depth, std::vector<Region>& out) {
    std::size_t axis = random_() % box.shape.size();
    if (depth > 0 && box.shape[axis] > 1) {
      const i64 at = 1 + static_cast<i64>(random_() % static_cast<u64>(box.shape[axis] - 1));
      Box low = box, high = box;
      low.shape[axis] = at;
      high.offset[axis] += at, high.shape[axis] -= at;
      cut(low, depth - 1, out);
      cut(high, depth - 1, out);
      return;
    }
    const i64 count = numel(box.shape);
    const i64 parts = 1 + static_cast<i64>(random_() % 3);
    for (i64 p = 0; p < parts; ++p) out.push_back({box, count * p / parts, count * (p + 1) / parts});
  }
  std::vector<Region> random_split(const Shape& shape) {
    std::vector<Region> regions;
    cut({shape, Shape(shape.size(), 0), shape}, 3, regions);
    return regions;
  }

  std::mt19937 random_{7};
};

TEST_F(Reader, AnySplitLoadsAnyOther) {
  i64 iteration = 0;
  for (const Shape& shape : {Shape{97}, Shape{24, 18}, Shape{6, 10, 14}, Shape{2, 30, 9}}) {
    for (int round = 0; round < 6; ++round) {
      std::vector<NamedShard> shards;
      for (const Region& region : random_split(shape)) shards.push_back(numbered("model/w", region));
      std::shuffle(shards.begin(), shards.end(), random_);
      CheckpointReader reader(save(++iteration, shards));
      for (int other = 0; other < 6; ++other) {
        for (const Region& region : random_split(shape)) {
          const NamedShard expected = numbered("model/w", region);
          NamedShard target("model/w", region.box, region.flat_begin, region.flat_end,
                            Tensor::zeros({region.numel()}, DType::F32, device_));
          reader.read(target);
          ASSERT_TRUE(same_bits(target.data, expected.data));
        }
      }
    }
  }
}

TEST_F(Reader, ConvertsOnlyWhenAsked) {
  NamedShard exact = numbered("model/w", {300}, DType::F32);
  for (i64 i = 0; i < 300; ++i) exact.data.data<float>()[i] = 1.0f + 0.001f * static_cast<float>(i);
  CheckpointReader reader(save(1, std::vector{exact, numbered("model/n", {300}, DType::I32)}));
  NamedShard target("model/w", exact.box, Tensor::zeros({300}, DType::BF16, device_));
  EXPECT_CONTAINS(error_of([&] { reader.read(target); }), "model/w is stored as fp32, wanted is bf16");
  reader.read(target, Conversion::Convert);
  for (i64 i = 0; i < 300; ++i) {
    ASSERT_EQ(target.data.data<BFloat16>()[i].bits, BFloat16(exact.data.data<float>()[i]).bits);
  }
  NamedShard integers("model/n", exact.box, Tensor::zeros({300}, DType::F32, device_));
  EXPECT_CONTAINS(error_of([&] { reader.read(integers, Conversion::Convert); }), "int32");

  CheckpointReader narrow(save(2, std::vector{target}));
  NamedShard wide("model/w", exact.box, Tensor::zeros({300}, DType::F32, device_));
  narrow.read(wide, Conversion::Convert);
  EXPECT_EQ(load(wide.data, 7), load(target.data, 7));
}

TEST_F(Reader, NamesWhatIsMissingOrDiffers) {
  CheckpointReader reader(save(1, std::vector{numbered("model/decoder.weight", {4, 5})}));
  NamedShard missing = numbered("model/decoder.weigth", {4, 5});
  const std::string error = error_of([&] { reader.read(missing); });
  EXPECT_CONTAINS(error, "has no tensor model/decoder.weigth");
  EXPECT_CONTAINS(error, "the nearest is model/decoder.weight");
  NamedShard other = numbered("model/decoder.weight", {5, 4});
  EXPECT_CONTAINS(error_of([&] { reader.read(other); }), "has shape [4, 5], this model needs [5, 4]");
  EXPECT_CONTAINS(error_of([&] { CheckpointReader nothing(folder_ / "iter_0000009"); }), "manifest.json");
}

TEST_F(Reader, RefusesADamagedFileUnlessItWasVerified) {
  const Path directory = save(1, std::vector{numbered("model/w", {100})});
  const Path file = directory / "shard_00000-of-00001.h5";
  std::string content = read_text_file(file);
  content[content.size() / 2] ^= 1;
  write_file_atomic(file, content);
  CheckpointReader reader(directory);
  EXPECT_CONTAINS(error_of([&] { reader.read_whole("model/w", device_); }), "shard_00000-of-00001.h5 is damaged");
}

}  // namespace
}  // namespace mcpp
