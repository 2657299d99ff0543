#include "checkpoint/save/async_save.h"

#include <sys/wait.h>
#include <unistd.h>

#include <latch>
#include <thread>

#include "tensor/ops/ops.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/checkpoint/faulty_files.h"
#include "tests/support/gpu.h"
#include "tests/support/lazy_copies.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
using test::FaultyFiles;

/// Runs the rest of the save and returns the path of the checkpoint.
Path finish(AsyncSave& save) {
  while (!save.advance()) continue;
  return save.path();
}

/// Blocks the thread that reaches a given point of a save until open() is called.
class SavePointBarrier {
 public:
  explicit SavePointBarrier(SavePoint point) : point_(point) {}
  ~SavePointBarrier() {
    if (opener_.joinable()) opener_.join();
  }
  SaveObserver observer() {
    return [this](SavePoint reached) {
      if (reached != point_) return;
      reached_.count_down();
      open_.wait();
    };
  }
  void wait_until_reached() { reached_.wait(); }
  void open() { open_.count_down(); }
  void open_in(i64 milliseconds) {
    opener_ = std::thread([this, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      open();
    });
  }

 private:
  SavePoint point_;
  std::latch reached_{1}, open_{1};
  std::thread opener_;
};

class AsyncSaveTest : public CheckpointTest {
 protected:
  /// Returns shards that differ in each iteration: one tensor of several shards and one of another element type.
  std::vector<NamedShard> state_of(i64 iteration) {
    std::vector<NamedShard> shards{numbered("model/b", {64, 64}, DType::BF16, iteration)};
    for (i64 i = 0; i < 3; ++i) {
      shards.push_back(
          numbered("model/a", Region{{{30, 50}, {0, 0}, {30, 50}}, 500 * i, 500 * (i + 1)}, DType::F32, iteration));
    }
    return shards;
  }
  static void overwrite_data(const std::vector<NamedShard>& shards) {
    for (const NamedShard& shard : shards)
      std::memset(shard.data.raw(), 0x5a, static_cast<std::size_t>(shard.data.bytes()));
  }
  /// Starts a save of `shards`, which must not change before wait_for_copy() returns.
  std::unique_ptr<AsyncSave> begin(i64 iteration, const std::vector<NamedShard>& shards, const FileSystem& files,
                                   SaveObserver observer = {}) {
    staging_.begin(shards);
    return std::make_unique<AsyncSave>(SaveTarget{.folder = folder_, .observer = std::move(observer)},
                                       RunState{.iteration = iteration}, staging_, *self_, log_, files);
  }
  static void sleep(i64 milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }
  static void wait_until_idle(const AsyncSave& save) {
    while (!save.is_idle()) sleep(1);
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

TEST_F(AsyncSaveTest, MatchesSynchronousSave) {
  const Path waited = save(1, state_of(7));
  const std::vector<NamedShard> shards = state_of(7);
  const auto save = begin(2, shards, files_);
  save->wait_for_copy();
  overwrite_data(shards);  // as the next training step does
  const Path path = finish(*save);
  EXPECT_EQ(path, folder_ / "iter_0000002");
  EXPECT_TRUE(read_text_file(file_of(path)) == read_text_file(file_of(waited)));
  EXPECT_EQ(find_problems(path), std::vector<std::string>{});
  EXPECT_EQ(latest_in(folder_), path);
}

/// The copies of a GPU continue while it computes; LazyCopies imitates this.
TEST_F(AsyncSaveTest, WaitsForDelayedCopies) {
  const std::string waited = read_text_file(file_of(save(1, state_of(7))));
  for (const bool is_prepared : {true, false}) {
    HostStaging staging(std::make_unique<test::LazyCopies>(device_));
    if (is_prepared) staging.prepare(state_of(7));
    for (const i64 iteration : {2, 3}) {
      const std::vector<NamedShard> shards = state_of(7);
      staging.begin(shards);
      AsyncSave save({.folder = folder_}, {.iteration = iteration}, staging, *self_, log_, files_);
      save.wait_for_copy();
      overwrite_data(shards);
      EXPECT_TRUE(read_text_file(file_of(finish(save))) == waited);
    }
  }
}

/// Buffers that copies may still use must not be reused.
TEST_F(AsyncSaveTest, KeepsBuffersWhileCanceledCopiesAreInFlight) {
  HostStaging staging(std::make_unique<test::LazyCopies>(device_));
  staging.begin(state_of(1));
  staging.begin(state_of(2));
  staging.copy_rest();
  const std::vector<NamedShard> shards = state_of(3);
  staging.begin(shards);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_CONTAINS(error_of([&] { staging.copy_rest(stop.get_token()); }), "canceled");
  staging.begin(std::span(shards).subspan(1));
  staging.copy_rest();
  for (std::size_t i = 1; i < shards.size(); ++i)
    EXPECT_TRUE(same_bits(staging.data(i - 1), shards[i].data.view({-1})));
  staging.begin(state_of(4));
}

class AsyncSaveDeviceTest : public AsyncSaveTest, public testing::WithParamInterface<DeviceType> {};
INSTANTIATE_TEST_SUITE_P(Devices, AsyncSaveDeviceTest, testing::ValuesIn(test::device_types()),
                         [](const auto& p) { return test::name_of(p.param); });

TEST_P(AsyncSaveDeviceTest, MatchesHostSave) {
  if (const std::string why = test::why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const std::string waited = read_text_file(file_of(save(1, state_of(7))));
  const std::unique_ptr<Device> device = test::make_device(GetParam());
  HostStaging staging(make_async_copy_engine(*device));
  for (const i64 iteration : {2, 3}) {
    std::vector<NamedShard> shards = state_of(7);
    for (NamedShard& shard : shards) {
      const Tensor device_data = Tensor::empty(shard.data.shape(), shard.data.dtype(), *device);
      const Tensor host_data = std::exchange(shard.data, device_data);
      write_bytes(host_data.raw(), shard.data);
    }
    staging.begin(shards);
    AsyncSave save({.folder = folder_}, {.iteration = iteration}, staging, *self_, log_, files_);
    save.wait_for_copy();
    for (NamedShard& shard : shards) ops::fill_zero(shard.data);
    EXPECT_TRUE(read_text_file(file_of(finish(save))) == waited);
  }
}

TEST_F(AsyncSaveTest, UsesPreparedBuffers) {
  const std::vector<NamedShard> shards = state_of(7);
  i64 bytes = 0;
  for (const NamedShard& shard : shards) bytes += shard.data.bytes();
  staging_.prepare(shards);
  const auto save = begin(2, shards, files_);
  const i64 staging_bytes = staging_.bytes();
  EXPECT_GE(staging_bytes, bytes);
  save->wait_for_copy();
  CheckpointReader reader(finish(*save));
  EXPECT_EQ(staging_.bytes(), staging_bytes) << "the buffers are allocated once";
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), shards[0].data));
}

TEST_F(AsyncSaveTest, SavesShardsWithoutPreparedBuffers) {
  const std::vector<NamedShard> shards = state_of(7);
  staging_.prepare(std::span(shards).subspan(1));
  CheckpointReader reader(finish(*begin(2, shards, files_)));
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), shards[0].data));
}

TEST_F(AsyncSaveTest, DestroysUnusedBuffers) {
  HostStaging staging;
  staging.prepare(state_of(7));
}

/// The background thread copies without a call of wait_for_copy().
TEST_F(AsyncSaveTest, CopiesBeforeWaitForCopyIsCalled) {
  SavePointBarrier barrier(SavePoint::BeforeFiles);
  const std::vector<NamedShard> shards = state_of(7);
  const auto save = begin(2, shards, files_, barrier.observer());
  EXPECT_FALSE(save->is_idle());
  overwrite_data(shards);  // which wait_for_copy() normally prevents
  barrier.open();
  CheckpointReader reader(finish(*save));
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), shards[0].data));
}

TEST_F(AsyncSaveTest, DoesNotBlockTrainingWhenDiskIsSlow) {
  save(1, state_of(1));
  FaultyFiles files;
  files.block_writes();
  const std::vector<NamedShard> shards = state_of(2);
  const auto save = begin(2, shards, files);
  save->wait_for_copy();
  overwrite_data(shards);
  sleep(20);
  EXPECT_FALSE(save->is_idle());
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001") << "the state after a kill at this point";
  files.unblock_writes();
  wait_until_idle(*save);
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001") << "written, but not yet a checkpoint";
  const Path path = finish(*save);
  EXPECT_EQ(newest_good(folder_, log_), path);
  CheckpointReader reader(path);
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), state_of(2)[0].data));
}

TEST_F(AsyncSaveTest, DoesNotBlockTrainingDuringCommitAndPruning) {
  for (const SavePoint point : {SavePoint::BeforeManifest, SavePoint::BeforeLatest, SavePoint::BeforePrune}) {
    SavePointBarrier barrier(point);
    const auto save = begin(2, state_of(2), files_, barrier.observer());
    wait_until_idle(*save);
    EXPECT_FALSE(save->advance());
    barrier.wait_until_reached();
    EXPECT_FALSE(save->is_idle());
    barrier.open();
    wait_until_idle(*save);
    EXPECT_TRUE(save->advance());
    EXPECT_EQ(latest_in(folder_), folder_ / "iter_0000002");
  }
}

/// A rank that exits in the middle of a save does not wait for other ranks.
TEST_F(AsyncSaveTest, LeavesFolderUnchangedWhenAbortedBeforeCommit) {
  save(1, state_of(1));
  const std::vector<std::string> before = entries();
  for (const SavePoint point : {SavePoint::BeforeFiles, SavePoint::AfterFiles}) {
    SavePointBarrier barrier(point);
    auto save = begin(2, state_of(2), files_, barrier.observer());
    barrier.wait_until_reached();
    barrier.open_in(20);
    save.reset();
    EXPECT_EQ(entries(), before);
  }
  FaultyFiles files;
  files.block_writes();
  auto save = begin(2, state_of(2), files);
  std::thread opener([&] {
    sleep(20);
    files.unblock_writes();
  });
  save.reset();
  opener.join();
  EXPECT_EQ(entries(), before);
  save = begin(2, state_of(2), files_);
  wait_until_idle(*save);
  save.reset();
  EXPECT_EQ(entries(), before);
}

TEST_F(AsyncSaveTest, FinishesCommitWhenAbortedDuringCommit) {
  save(1, state_of(1));
  i64 iteration = 2;
  for (const SavePoint point :
       {SavePoint::BeforeManifest, SavePoint::BeforeRename, SavePoint::BeforeLatest, SavePoint::BeforePrune}) {
    SavePointBarrier barrier(point);
    auto save = begin(iteration, state_of(iteration), files_, barrier.observer());
    EXPECT_FALSE(save->advance());
    barrier.wait_until_reached();
    barrier.open_in(20);
    save.reset();
    EXPECT_EQ(latest_in(folder_), folder_ / checkpoint_name(iteration));
    EXPECT_EQ(find_problems(folder_ / checkpoint_name(iteration)), std::vector<std::string>{});
    EXPECT_EQ(entries().size(), static_cast<std::size_t>(iteration) + 1) << "nothing else is left";
    ++iteration;
  }
}

TEST_F(AsyncSaveTest, ReusesStagingBuffersInNextSave) {
  const auto copy = [this](i64 iteration) {
    staging_.begin(state_of(iteration));
    staging_.copy_rest();
  };
  copy(1);
  const void* memory = staging_.data(0).raw();
  const i64 bytes = staging_.bytes();
  EXPECT_GE(bytes, 64 * 64 * 2 + 1500 * 4);
  copy(2);
  EXPECT_EQ(staging_.data(0).raw(), memory);
  EXPECT_EQ(staging_.bytes(), bytes);
  EXPECT_TRUE(same_bits(staging_.data(0), state_of(2)[0].data));
}

/// A fault on one of three ranks ends the save on all ranks, names that rank, and leaves the existing checkpoints.
TEST_F(AsyncSaveTest, FailsOnAllRanksWhenDiskOfOneRankFails) {
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
    for (const bool is_asynchronous : {false, true}) {
      const auto errors = errors_of_ranks(3, [&](Communicator& world) {
        FaultyFiles files;
        if (world.rank() == fault.rank) fault.make(files);
        const std::vector<NamedShard> rank_shards{
            numbered("model/w", full_region({{3, 9000}, {world.rank(), 0}, {1, 9000}}))};
        if (!is_asynchronous) {
          test::save_shards(folder_, {.iteration = 2}, rank_shards, world, Log(world.rank()), {}, files);
          return;
        }
        HostStaging staging;
        const Log log(world.rank());
        staging.begin(rank_shards);
        AsyncSave save({.folder = folder_}, {.iteration = 2}, staging, world, log, files);
        save.wait_for_copy();
        finish(save);
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

TEST_F(AsyncSaveTest, ReportsFullDiskAfterBackgroundWrite) {
  FaultyFiles files;
  files.full_at = 5000;
  const auto save = begin(1, state_of(1), files);
  wait_until_idle(*save);
  EXPECT_CONTAINS(error_of([&] { save->advance(); }), "shard_00000-of-00001.h5: No space left");
}

/// Device that claims to have unlimited memory.
class EndlessDevice final : public Device {
 public:
  EndlessDevice() : Device(DeviceType::Cpu) {}
  ~EndlessDevice() override { free_pool(); }

 private:
  void* system_allocate(i64) override { return &byte_; }
  void system_free(void*) noexcept override {}
  std::byte byte_{};
};

/// If the copy of one rank fails or never starts, neither this rank nor the others block.
TEST_F(AsyncSaveTest, FailsOnAllRanksWhenCopyOfOneRankFails) {
  save(1, state_of(1));
  const std::vector<std::string> before = entries();
  EndlessDevice endless;
  const i64 count = i64{1} << 50;
  for (const bool is_out_of_memory : {true, false}) {
    const auto errors = errors_of_ranks(3, [&](Communicator& world) {
      std::vector<NamedShard> rank_shards = state_of(2);
      SaveTarget target{.folder = folder_};
      if (world.rank() == 1 && is_out_of_memory) {
        rank_shards = {NamedShard("model/huge", {{count}, {0}, {count}},
                                  Tensor::empty({count}, DType::F32, endless, MemoryClass::Other))};
      } else if (world.rank() == 1) {
        target.observer = [](SavePoint) { throw std::runtime_error("memory runs out"); };
      }
      HostStaging staging;
      staging.begin(rank_shards);
      const Log log(world.rank());
      AsyncSave save(target, {.iteration = 2}, staging, world, log, files_);
      save.wait_for_copy();
      save.advance();
    });
    for (const std::string& error : errors) {
      EXPECT_EQ(error, errors[0]);
      EXPECT_CONTAINS(error, "rank 1: ");
      EXPECT_CONTAINS(error, is_out_of_memory ? "out of memory" : "memory runs out");
    }
    EXPECT_EQ(entries(), before);
  }
}

TEST_F(AsyncSaveTest, FailsOnAllRanksWhenCommitFails) {
  save(1, state_of(1));
  for (const SavePoint point :
       {SavePoint::BeforeManifest, SavePoint::BeforeRename, SavePoint::BeforeLatest, SavePoint::BeforePrune}) {
    const auto errors = errors_of_ranks(3, [&](Communicator& world) {
      const std::vector<NamedShard> rank_shards{
          numbered("model/w", full_region({{3, 90}, {world.rank(), 0}, {1, 90}}))};
      HostStaging staging;
      staging.begin(rank_shards);
      const Log log(world.rank());
      const SaveObserver observer = [point](SavePoint reached) {
        if (reached == point) throw std::runtime_error("an injected fault");
      };
      AsyncSave save({.folder = folder_, .observer = observer}, {.iteration = 2}, staging, world, log, files_);
      EXPECT_FALSE(save.advance());
      save.advance();
    });
    EXPECT_EQ(errors, std::vector<std::string>(3, "rank 0: an injected fault"));
    const bool is_complete = point >= SavePoint::BeforeLatest;
    EXPECT_EQ(newest_good(folder_, log_), folder_ / (is_complete ? "iter_0000002" : "iter_0000001"));
    const bool has_begun = point >= SavePoint::BeforeRename && point < SavePoint::BeforePrune;
    EXPECT_EQ(fs::exists(folder_ / kNextName), is_complete && has_begun);
    fs::remove(folder_ / kNextName);
    EXPECT_EQ(entries().size(), is_complete ? 3u : 2u) << "nothing else is left";
  }
}

TEST_F(AsyncSaveTest, FindsCheckpointWhoseRenameWasReportedAsFailed) {
  save(1, state_of(1));
  FaultyFiles files;
  files.rename_tears = true;
  EXPECT_CONTAINS(error_of([&] { test::save_shards(folder_, {.iteration = 2}, state_of(2), *self_, log_, {}, files); }),
                  "cannot rename");
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000002") << "it is complete, although latest does not name it";
}

TEST_F(AsyncSaveTest, ContinuesShortAndInterruptedWrites) {
  const Path plain = save(1, state_of(3));
  FaultyFiles files;
  files.chunk = 100;
  const Path path = finish(*begin(2, state_of(3), files));
  EXPECT_TRUE(read_text_file(file_of(path)) == read_text_file(file_of(plain)));
}

TEST_F(AsyncSaveTest, ReplacesCheckpointWithoutAtomicExchange) {
  FaultyFiles files;
  files.cannot_exchange = true;
  save(5, state_of(1));
  test::save_shards(folder_, {.iteration = 5}, state_of(2), *self_, log_, {}, files);
  CheckpointReader reader(folder_ / "iter_0000005");
  EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), state_of(2)[0].data));
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000005", "latest"}));
  files.rename_fails = true;
  EXPECT_CONTAINS(error_of([&] { test::save_shards(folder_, {.iteration = 5}, state_of(3), *self_, log_, {}, files); }),
                  "cannot rename");
  EXPECT_EQ(find_problems(folder_ / "iter_0000005"), std::vector<std::string>{}) << "the old checkpoint still exists";
  FaultyFiles second;
  second.cannot_exchange = true;
  second.last_rename = 1;
  const std::string error =
      error_of([&] { test::save_shards(folder_, {.iteration = 5}, state_of(3), *self_, log_, {}, second); });
  EXPECT_CONTAINS(error, "cannot rename");
  remove_stale_entries(folder_, log_);
  EXPECT_TRUE(
      same_bits(CheckpointReader(folder_ / "iter_0000005").read_full_tensor("model/b", device_), state_of(2)[0].data))
      << "the old checkpoint is restored";
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000005", "latest"}));
}

/// The process is killed between the two renames that replace a checkpoint, or after them.
TEST_F(AsyncSaveTest, KeepsOneCheckpointWhenKilledDuringReplacement) {
  save(4, state_of(0));
  save(5, state_of(1));
  for (const bool is_between : {true, false}) {
    const pid_t child = ::fork();
    if (child == 0) {
      FaultyFiles files;
      files.cannot_exchange = files.dies_at_rename = true;
      if (is_between) files.last_rename = 1;
      CheckpointSave save({.folder = folder_,
                           .observer =
                               [](SavePoint point) {
                                 if (point == SavePoint::BeforeLatest) ::_exit(0);
                               }},
                          {.iteration = 5}, *self_, log_, files);
      const std::vector<NamedShard> shards = state_of(2);
      test::ShardList source(shards);
      save.write(source);
      save.gather_and_finish();
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(fs::exists(folder_ / "iter_0000005"), !is_between);
    remove_stale_entries(folder_, log_);  // as a run does at its start
    EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000005");
    CheckpointReader reader(folder_ / "iter_0000005");
    EXPECT_TRUE(same_bits(reader.read_full_tensor("model/b", device_), state_of(is_between ? 1 : 2)[0].data));
    EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000004", "iter_0000005", "latest"}));
  }
}

/// Part checkpoints are used by the local tier: each rank has its own checkpoint of the shards that it holds.
TEST_F(AsyncSaveTest, PartCheckpointsAreValidWithoutOtherParts) {
  const Shape shape{4, 6};
  const auto part_of = [&](int rank) {
    return std::vector{numbered("model/w", full_region({shape, {2 * rank, 0}, {2, 6}})), numbered("model/same", {5})};
  };
  const auto errors = errors_of_ranks(2, [&](Communicator& world) {
    const Log log(world.rank());
    HostStaging staging;
    const std::vector<NamedShard> rank_shards = part_of(world.rank());
    staging.begin(rank_shards);
    AsyncSave save({.folder = folder_ / str(world.rank()), .coverage = Coverage::Part}, {.iteration = 3}, staging,
                   world, log, files_);
    EXPECT_EQ(finish(save), folder_ / str(world.rank()) / "iter_0000003");
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  for (int rank = 0; rank < 2; ++rank) {
    const Path directory = folder_ / str(rank) / "iter_0000003";
    EXPECT_EQ(find_problems(directory), std::vector<std::string>{});
    CheckpointReader reader(directory);
    const test::ShardList rank_shards(part_of(rank)), other(part_of(1 - rank));
    EXPECT_TRUE(reader.has_all_elements(rank_shards.shards()[0]) && reader.has_all_elements(rank_shards.shards()[1]));
    EXPECT_FALSE(reader.has_all_elements(other.shards()[0]));
    NamedShard back = numbered("model/w", full_region({shape, {2 * rank, 0}, {2, 6}}), DType::F32, 100);
    reader.read(back);
    EXPECT_TRUE(same_bits(back.data, part_of(rank)[0].data));
    EXPECT_CONTAINS(error_of([&] { reader.read_full_tensor("model/w", device_); }), "only 12 of 24 elements");
  }
}

}  // namespace
}  // namespace mcpp
