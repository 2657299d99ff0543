#include "checkpoint/load/reader.h"

#include <set>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

class CheckpointReaderTest : public CheckpointTest {
 protected:
  /// Splits the box into disjoint regions, at random positions along random axes. Some regions are split into flat
  /// ranges.
  void split_box(const Box& box, int depth, std::vector<Region>& out) {
    std::size_t axis = random_() % box.shape.size();
    if (depth > 0 && box.shape[axis] > 1) {
      const i64 at = 1 + static_cast<i64>(random_() % static_cast<u64>(box.shape[axis] - 1));
      Box low = box, high = box;
      low.shape[axis] = at;
      high.offset[axis] += at, high.shape[axis] -= at;
      split_box(low, depth - 1, out);
      split_box(high, depth - 1, out);
      return;
    }
    const i64 count = numel(box.shape);
    const i64 parts = 1 + static_cast<i64>(random_() % 3);
    for (i64 p = 0; p < parts; ++p) out.push_back({box, count * p / parts, count * (p + 1) / parts});
  }
  std::vector<Region> random_split(const Shape& shape) {
    std::vector<Region> regions;
    split_box({shape, Shape(shape.size(), 0), shape}, 3, regions);
    return regions;
  }

  /// Flips a bit in the middle of these values in the file.
  static void flip_bit(const Path& file, const Tensor& values) {
    std::string content = read_text_file(file);
    const auto size = static_cast<std::size_t>(values.bytes());
    const std::size_t at = content.find(std::string(static_cast<const char*>(values.raw()), size));
    ASSERT_NE(at, std::string::npos);
    content[at + size / 2] ^= 1;
    overwrite(file, content);
  }

  std::mt19937 random_{7};
};

TEST_F(CheckpointReaderTest, LoadsAnyShardingFromAnyOtherSharding) {
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

TEST_F(CheckpointReaderTest, ConvertsTypesOnlyWhenAllowed) {
  NamedShard exact = numbered("model/w", {300}, DType::F32);
  for (i64 i = 0; i < 300; ++i) exact.data.data<float>()[i] = 1.0f + 0.001f * static_cast<float>(i);
  CheckpointReader reader(save(1, std::vector{exact, numbered("model/n", {300}, DType::I32)}));
  NamedShard target("model/w", exact.box, Tensor::zeros({300}, DType::BF16, device_));
  EXPECT_CONTAINS(error_of([&] { reader.read(target); }), "model/w is stored as fp32, expected bf16");
  reader.read(target, Conversion::Convert);
  for (i64 i = 0; i < 300; ++i) {
    ASSERT_EQ(target.data.data<BFloat16>()[i].bits, BFloat16(exact.data.data<float>()[i]).bits);
  }
  NamedShard integers("model/n", exact.box, Tensor::zeros({300}, DType::F32, device_));
  EXPECT_CONTAINS(error_of([&] { reader.read(integers, Conversion::Convert); }), "int32");

  CheckpointReader low_precision_reader(save(2, std::vector{target}));
  NamedShard widened("model/w", exact.box, Tensor::zeros({300}, DType::F32, device_));
  low_precision_reader.read(widened, Conversion::Convert);
  EXPECT_EQ(load(widened.data, 7), load(target.data, 7));
}

TEST_F(CheckpointReaderTest, NamesMissingTensorsAndWrongShapes) {
  CheckpointReader reader(save(1, std::vector{numbered("model/decoder.weight", {4, 5})}));
  NamedShard missing = numbered("model/decoder.weigth", {4, 5});
  const std::string error = error_of([&] { reader.read(missing); });
  EXPECT_CONTAINS(error, "has no tensor model/decoder.weigth");
  EXPECT_CONTAINS(error, "the nearest is model/decoder.weight");
  NamedShard other = numbered("model/decoder.weight", {5, 4});
  EXPECT_CONTAINS(error_of([&] { reader.read(other); }), "has shape [4, 5]; this model needs [5, 4]");
  EXPECT_CONTAINS(error_of([&] { CheckpointReader nothing(folder_ / "iter_0000009"); }), "manifest.json");
}

TEST_F(CheckpointReaderTest, ReadsIntactTensorsWhenAnotherIsDamaged) {
  const Path directory = save(1, std::vector{numbered("model/v", {70}), numbered("model/w", {100})});
  flip_bit(directory / "shard_00000-of-00001.h5", numbered("model/w", {100}).data);
  CheckpointReader reader(directory);
  EXPECT_CONTAINS(error_of([&] { reader.read_full_tensor("model/w", device_); }),
                  "shard_00000-of-00001.h5 is damaged: model/w");
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/v", device_), numbered("model/v", {70}).data));
}

TEST_F(CheckpointReaderTest, VerifiesFullShardWhenPartIsRead) {
  const Shape shape{40, 5};
  const NamedShard whole_shard = numbered("model/w", shape);
  const Path directory = save(1, std::vector{whole_shard});
  NamedShard rows = numbered("model/w", full_region({shape, {3, 0}, {2, 5}}));
  const Path file = directory / "shard_00000-of-00001.h5";
  const std::string original = read_text_file(file);
  flip_bit(file, whole_shard.data);  // in the middle of the shard, outside the requested part
  CheckpointReader damaged(directory);
  EXPECT_CONTAINS(error_of([&] { damaged.read(rows); }), "differs from its checksum");
  overwrite(file, original);
  CheckpointReader reader(directory);
  reader.read(rows);
  flip_bit(file, whole_shard.data);
  reader.read(rows);  // The shard was verified before, so the second part is read without verification.
}

/// Three ranks request random parts, with overlaps. All values are correct, and all ranks find every damage.
TEST_F(CheckpointReaderTest, CollectiveLoadVerifiesEveryShardThatAnyRankReads) {
  constexpr int kRanks = 3;
  const Shape shape{6, 40, 9};
  for (int round = 0; round < 12; ++round) {
    std::vector<NamedShard> shards;
    for (const char* name : {"model/v", "model/w"}) {
      for (const Region& region : random_split(shape)) shards.push_back(numbered(name, region));
    }
    const Path directory = save(round + 1, shards);
    std::vector<std::vector<Region>> wanted(kRanks);
    for (auto& list : wanted) list = random_split(shape);
    wanted[2].resize(wanted[2].size() / 2);
    std::vector<std::optional<Damage>> found(kRanks);
    const auto load_on_all = [&] {
      run_local_ranks(kRanks, [&](Communicator& world, int rank) {
        std::vector<NamedShard> targets;
        const auto r = static_cast<std::size_t>(rank);
        for (const Region& region : wanted[r])
          targets.emplace_back("model/w", region.box, region.flat_begin, region.flat_end,
                               Tensor::zeros({region.numel()}, DType::F32, device_));
        CheckpointReader reader(directory);
        found[r] = reader.load(targets, world);
        for (std::size_t i = 0; i < targets.size() && !found[r]; ++i)
          EXPECT_TRUE(same_bits(targets[i].data, numbered("model/w", wanted[r][i]).data));
      });
    };
    load_on_all();
    for (const auto& damage : found) EXPECT_FALSE(damage) << damage->text;

    // Ranks 0 and 1 request all of w and nothing of v.
    const std::size_t victim = random_() % shards.size();
    flip_bit(directory / "shard_00000-of-00001.h5", shards[victim].data);
    load_on_all();
    const bool is_wanted = shards[victim].name == "model/w";
    for (const auto& damage : found) {
      ASSERT_EQ(damage.has_value(), is_wanted);
      if (damage) {
        EXPECT_CONTAINS(damage->text, "model/w differs from its checksum");
        EXPECT_EQ(damage->rank, found[0]->rank);
      }
    }
  }
}

/// Weights are read through the page cache, optimizer states not necessarily. Tensors are larger than a block or a few
/// bytes long, and the odd sizes leave the following tensors unaligned.
TEST_F(CheckpointReaderTest, LoadsLargeSmallAndUnalignedTensors) {
  std::vector<NamedShard> shards;
  for (const char* name : {"model/w", "optimizer/exp_avg/w"}) {
    const auto name_of = [&](const char* part) { return str(name, ".", part); };
    shards.push_back(numbered(name_of("odd"), {3}, DType::BF16));
    shards.push_back(numbered(name_of("large"), {1300, 1700}));
    shards.push_back(numbered(name_of("one"), {1}, DType::BF16));
    for (const Region& region : random_split({70, 31}))
      shards.push_back(numbered(name_of("parts"), region, DType::F64));
    shards.push_back(numbered(name_of("larger"), {1400, 1700}, DType::BF16));
  }
  const Path directory = save(1, shards);
  for (const int ranks : {1, 2}) {
    run_local_ranks(ranks, [&](Communicator& world, int rank) {
      std::vector<NamedShard> expected, targets;
      for (std::size_t i = static_cast<std::size_t>(rank); i < shards.size(); i += i % 3 == 0 ? 1 : 2) {
        expected.push_back(shards[i]);
        targets.push_back(shards[i]);
        targets.back().data = Tensor::zeros({shards[i].numel()}, shards[i].dtype(), device_);
      }
      CheckpointReader reader(directory);
      ASSERT_FALSE(reader.load(targets, world));
      for (std::size_t i = 0; i < targets.size(); ++i)
        EXPECT_TRUE(same_bits(targets[i].data, expected[i].data)) << expected[i].name;
    });
  }
}

/// Two nodes of two ranks request everything, and each node has its own disk. Damage on one disk must be found on that
/// node, each time by one of its two ranks, because they share the work.
TEST_F(CheckpointReaderTest, RanksOfNodeShareVerification) {
  std::vector<NamedShard> shards;
  for (const char* name : {"model/a", "model/b", "model/c", "model/d"})
    shards.push_back(numbered(name, {30, 20}, DType::F32, 1000 * static_cast<i64>(shards.size())));
  const Path directory = save(1, shards), other_disk = folder_ / "other_disk";
  for (const int node : {0, 1}) {
    std::set<int> finders;
    for (const NamedShard& victim : shards) {
      std::filesystem::remove_all(other_disk);
      std::filesystem::copy(directory, other_disk);
      flip_bit(other_disk / "shard_00000-of-00001.h5", victim.data);
      std::array<std::optional<Damage>, 4> found;
      run_local_ranks(4, [&](Communicator& world, int rank) {
        const auto ranks_of_node = world.split(rank / 2, rank);
        CheckpointReader reader(rank / 2 == node ? other_disk : directory);
        std::vector<NamedShard> targets;
        for (const NamedShard& shard : shards)
          targets.emplace_back(shard.name, shard.box, Tensor::zeros({30, 20}, DType::F32, device_));
        found.at(static_cast<std::size_t>(rank)) = reader.load(targets, {world, *ranks_of_node});
      });
      for (const auto& damage : found) {
        ASSERT_TRUE(damage.has_value());
        EXPECT_CONTAINS(damage->text, victim.name + " differs from its checksum");
        finders.insert(damage->rank);
      }
    }
    EXPECT_EQ(finders, (std::set{2 * node, 2 * node + 1}));
  }
}

TEST_F(CheckpointReaderTest, FailsOnAllRanksWhenModelDiffersOnOneRank) {
  const Path directory = save(1, std::vector{numbered("model/w", {4, 5})});
  const auto errors = errors_of_ranks(2, [&](Communicator& world) {
    std::vector<NamedShard> targets{numbered("model/w", world.rank() == 1 ? Shape{5, 4} : Shape{4, 5})};
    CheckpointReader(directory).load(targets, world);
  });
  for (const std::string& error : errors) EXPECT_CONTAINS(error, "rank 1: ");
}

/// Two targets need the same tensor, like tied embeddings at both ends of a pipeline.
TEST_F(CheckpointReaderTest, LoadsTensorIntoTwoTargets) {
  CheckpointReader reader(save(1, std::vector{numbered("model/w", {300, 900})}));
  std::vector<NamedShard> targets{numbered("model/w", {300, 900}, DType::F32, 5),
                                  numbered("model/w", full_region({{300, 900}, {7, 0}, {200, 900}}), DType::F32, 5)};
  EXPECT_FALSE(reader.load(targets, *self_));
  EXPECT_TRUE(same_bits(targets[0].data, numbered("model/w", {300, 900}).data));
  EXPECT_TRUE(same_bits(targets[1].data, numbered("model/w", full_region({{300, 900}, {7, 0}, {200, 900}})).data));
}

}  // namespace
}  // namespace mcpp
