#include "checkpoint/async_save.h"

#include "tests/checkpoint/faulty_files.h"
#include "tests/checkpoint/fixture.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
using test::FaultyFiles;

class Async : public CheckpointTest {
 protected:
  /// One tensor of several shards and one of another type, all different in each iteration.
  std::vector<NamedShard> state_of(i64 iteration) {
    std::vector<NamedShard> shards{numbered("model/b", {64, 64}, DType::BF16, iteration)};
    for (i64 i = 0; i < 3; ++i) {
      shards.push_back(
          numbered("model/a", Region{{{30, 50}, {0, 0}, {30, 50}}, 500 * i, 500 * (i + 1)}, DType::F32, iteration));
    }
    return shards;
  }
  static void spoil(const std::vector<NamedShard>& shards) {
    for (const NamedShard& shard : shards)
      std::memset(shard.data.raw(), 0x5a, static_cast<std::size_t>(shard.data.bytes()));
  }
  std::unique_ptr<AsyncSave> begin(i64 iteration, Communicator& world, const FileSystem& files) {
    return std::make_unique<AsyncSave>(SaveTarget{.folder = folder_}, RunState{.iteration = iteration}, staging_, world,
                                       log_, files);
  }
  static Path file_of(const Path& checkpoint) { return checkpoint / "shard_00000-of-00001.h5"; }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  HostStaging staging_;
  const FileSystem files_;
};

TEST_F(Async, HasTheBitsOfASaveThatIsWaitedFor) {
  const Path waited = save(1, state_of(7));
  const std::vector<NamedShard> shards = state_of(7);
  staging_.copy(shards);
  const auto save = begin(2, *self_, files_);
  spoil(shards);  // the training goes on
  const Path path = save->finish();
  EXPECT_EQ(path, folder_ / "iter_0000002");
  EXPECT_TRUE(read_text_file(file_of(path)) == read_text_file(file_of(waited)));
  EXPECT_EQ(problems_of(path), std::vector<std::string>{});
  EXPECT_EQ(latest_in(folder_), path);
}

TEST_F(Async, TrainingGoesOnWhileASlowDiskWrites) {
  save(1, state_of(1));
  FaultyFiles files;
  files.close_gate();
  const std::vector<NamedShard> shards = state_of(2);
  staging_.copy(shards);
  const auto save = begin(2, *self_, files);
  spoil(shards);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(save->is_written());
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001") << "as after a kill now";
  files.open_gate();
  while (!save->is_written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001") << "written, but not yet a checkpoint";
  const Path path = save->finish();
  EXPECT_EQ(newest_good(folder_, log_), path);
  CheckpointReader reader(path);
  EXPECT_TRUE(same_bits(reader.read_whole("model/b", device_), state_of(2)[0].data));
}

TEST_F(Async, GivenUpItLeavesTheFolderAsBefore) {
  save(1, state_of(1));
  const std::vector<std::string> before = entries();
  FaultyFiles files;
  files.close_gate();
  staging_.copy(state_of(2));
  auto save = begin(2, *self_, files);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    files.open_gate();
  });
  save.reset();
  opener.join();
  EXPECT_EQ(entries(), before);
}

TEST_F(Async, StagingIsPaidForOnce) {
  staging_.copy(state_of(1));
  const void* memory = staging_.data(0).raw();
  const i64 bytes = staging_.bytes();
  EXPECT_GE(bytes, 64 * 64 * 2 + 1500 * 4);
  staging_.copy(state_of(2));
  EXPECT_EQ(staging_.data(0).raw(), memory);
  EXPECT_EQ(staging_.bytes(), bytes);
  EXPECT_TRUE(same_bits(staging_.data(0), state_of(2)[0].data));
}

/// What goes wrong on one of three ranks ends the save on all, with the name of that rank, and leaves what was there.
TEST_F(Async, FaultsOfTheDiskEndItEverywhere) {
  struct Fault {
    const char* message;
    std::function<void(FaultyFiles&)> make;
    int rank = 1;
  };
  std::vector<Fault> faults{{"cannot flush", [](FaultyFiles& files) { files.flush_fails = true; }},
                            {"cannot rename", [](FaultyFiles& files) { files.rename_fails = true; }, 0}};
  for (const i64 bytes : {0, 1, 999, 4096, 20000})
    faults.push_back({"No space left", [bytes](FaultyFiles& files) { files.full_at = bytes; }});
  save(1, state_of(1));
  const std::vector<std::string> before = entries();
  for (const Fault& fault : faults) {
    for (const bool beside_training : {false, true}) {
      const auto errors = errors_of_ranks(3, [&](Communicator& world) {
        FaultyFiles files;
        if (world.rank() == fault.rank) fault.make(files);
        const std::vector<NamedShard> mine{numbered("model/w", whole({{3, 9000}, {world.rank(), 0}, {1, 9000}}))};
        if (!beside_training) {
          save_checkpoint(folder_, {.iteration = 2}, mine, world, Log(world.rank()), {}, files);
          return;
        }
        HostStaging staging;
        const Log log(world.rank());
        staging.copy(mine);
        AsyncSave save({.folder = folder_}, {.iteration = 2}, staging, world, log, files);
        save.finish();
      });
      for (const std::string& error : errors) {
        EXPECT_CONTAINS(error, fault.message);
        EXPECT_EQ(error, errors[0]);
        EXPECT_CONTAINS(error, str("rank ", fault.rank, ": "));
      }
      EXPECT_EQ(entries(), before) << fault.message;
    }
  }
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
}

TEST_F(Async, AFullDiskBesideTheTrainingIsFoundAtTheEndOfTheSave) {
  FaultyFiles files;
  files.full_at = 5000;
  staging_.copy(state_of(1));
  const auto save = begin(1, *self_, files);
  while (!save->is_written()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_CONTAINS(error_of([&] { save->finish(); }), "shard_00000-of-00001.h5: No space left");
}

TEST_F(Async, ARenameOfWhichNobodyHearsIsFoundAgain) {
  save(1, state_of(1));
  FaultyFiles files;
  files.rename_tears = true;
  EXPECT_CONTAINS(error_of([&] { save_checkpoint(folder_, {.iteration = 2}, state_of(2), *self_, log_, {}, files); }),
                  "cannot rename");
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000002") << "it is complete, though latest does not name it";
}

TEST_F(Async, ShortAndInterruptedWritesAreContinued) {
  const Path plain = save(1, state_of(3));
  FaultyFiles files;
  files.piece = 100;
  staging_.copy(state_of(3));
  const Path path = begin(2, *self_, files)->finish();
  EXPECT_TRUE(read_text_file(file_of(path)) == read_text_file(file_of(plain)));
}

TEST_F(Async, ReplacesACheckpointWhereNamesCannotBeExchanged) {
  FaultyFiles files;
  files.cannot_exchange = true;
  save(5, state_of(1));
  save_checkpoint(folder_, {.iteration = 5}, state_of(2), *self_, log_, {}, files);
  CheckpointReader reader(folder_ / "iter_0000005");
  EXPECT_TRUE(same_bits(reader.read_whole("model/b", device_), state_of(2)[0].data));
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000005", "latest"}));
  files.rename_fails = true;
  EXPECT_CONTAINS(error_of([&] { save_checkpoint(folder_, {.iteration = 5}, state_of(3), *self_, log_, {}, files); }),
                  "cannot rename");
  EXPECT_EQ(problems_of(folder_ / "iter_0000005"), std::vector<std::string>{}) << "the old one is back";
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000005", "latest"}));
}

/// The parts of the local tier: each rank has a checkpoint of its own, of what it holds.
TEST_F(Async, PartsAreSoundByThemselves) {
  const Shape shape{4, 6};
  const auto part_of = [&](int rank) {
    return std::vector{numbered("model/w", whole({shape, {2 * rank, 0}, {2, 6}})), numbered("model/same", {5})};
  };
  const auto errors = errors_of_ranks(2, [&](Communicator& world) {
    const Log log(world.rank());
    HostStaging staging;
    staging.copy(part_of(world.rank()));
    AsyncSave save({.folder = folder_ / str(world.rank()), .coverage = Coverage::Part}, {.iteration = 3}, staging,
                   world, log, files_);
    EXPECT_EQ(save.finish(), folder_ / str(world.rank()) / "iter_0000003");
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  for (int rank = 0; rank < 2; ++rank) {
    const Path directory = folder_ / str(rank) / "iter_0000003";
    EXPECT_EQ(problems_of(directory), std::vector<std::string>{});
    CheckpointReader reader(directory);
    const ShardList mine(part_of(rank)), other(part_of(1 - rank));
    EXPECT_TRUE(reader.holds(mine.shards()[0]) && reader.holds(mine.shards()[1]));
    EXPECT_FALSE(reader.holds(other.shards()[0]));
    NamedShard back = numbered("model/w", whole({shape, {2 * rank, 0}, {2, 6}}), DType::F32, 100);
    reader.read(back);
    EXPECT_TRUE(same_bits(back.data, part_of(rank)[0].data));
    EXPECT_CONTAINS(error_of([&] { reader.read_whole("model/w", device_); }), "only 12 of 24 elements");
  }
}

}  // namespace
}  // namespace mcpp
