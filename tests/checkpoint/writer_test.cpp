#include "checkpoint/save/writer.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>

#include "base/machine.h"
#include "checkpoint/directory/lineage.h"
#include "checkpoint/directory/retention.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

class CheckpointWriterTest : public CheckpointTest {
 protected:
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(CheckpointWriterTest, RoundTripsAllTypesAndRunState) {
  std::vector<NamedShard> shards;
  for (DType t : {DType::F32, DType::BF16, DType::F16, DType::F64, DType::I32, DType::I64}) {
    shards.push_back(numbered("model/" + std::string(name_of(t)), {3, 5}, t));
  }
  shards.push_back(numbered("model/scalar", Shape{}));
  float* special = shards[0].data.data<float>();
  special[0] = std::numeric_limits<float>::quiet_NaN(), special[1] = -0.0f;
  special[2] = std::numeric_limits<float>::infinity(), special[3] = std::numeric_limits<float>::denorm_min();

  const RunState state{.iteration = 100,
                       .consumed_samples = 800,
                       .consumed_tokens = i64{1} << 60,
                       .skipped_iterations = 3,
                       .config = "[model]\nnum_layers = 2 # \"ä\"\n",
                       .model_fingerprint = "f",
                       .tokenizer_checksum = "t",
                       .program_version = "0.1.0",
                       .extra = {{"loss_scale", "65536"}, {"", "empty key"}}};
  const Path directory = test::save_shards(folder_, state, shards, *self_, log_);
  EXPECT_EQ(directory, folder_ / "iter_0000100");
  EXPECT_EQ(read_text_file(folder_ / "latest"), "iter_0000100\n");
  EXPECT_EQ(find_problems(directory), std::vector<std::string>{});

  CheckpointReader reader(directory);
  EXPECT_EQ(reader.state(), state);
  EXPECT_EQ(reader.manifest().tensors.size(), shards.size());
  for (const NamedShard& shard : shards) {
    const Tensor back = reader.read_full_tensor(shard.name, device_);
    EXPECT_TRUE(same_bits(back, shard.data)) << shard.name;
    EXPECT_EQ(back.shape(), shard.box.global);
  }
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000100", "latest"}));
}

TEST_F(CheckpointWriterTest, WritesIdenticalFilesForEqualContent) {
  const std::vector<NamedShard> shards{numbered("model/a", {30, 50}), numbered("optimizer/exp_avg/a", {30, 50})};
  save(1, shards);
  save(2, shards);
  EXPECT_EQ(read_text_file(folder_ / "iter_0000001/shard_00000-of-00001.h5"),
            read_text_file(folder_ / "iter_0000002/shard_00000-of-00001.h5"));
}

TEST_F(CheckpointWriterTest, WritesOneFilePerRankReadableByAnyLayout) {
  constexpr int kRanks = 3;
  const Shape shape{6, 8};
  // The weight is sharded by columns over two ranks, the optimizer state by flat ranges over all three.
  const auto errors = errors_of_ranks(kRanks, [&](Communicator& world) {
    const i64 rank = world.rank();
    std::vector<NamedShard> rank_shards;
    if (rank < 2) rank_shards.push_back(numbered("model/w", full_region({shape, {0, rank * 4}, {6, 4}}), DType::BF16));
    rank_shards.push_back(numbered("optimizer/exp_avg/w", Region{{shape, {0, 0}, shape}, rank * 16, rank * 16 + 16}));
    test::save_shards(folder_, {.iteration = 7}, rank_shards, world, Log(world.rank()));
  });
  EXPECT_EQ(errors, std::vector<std::string>(kRanks));
  const Path directory = folder_ / "iter_0000007";
  EXPECT_EQ(find_problems(directory), std::vector<std::string>{});

  CheckpointReader reader(directory);
  EXPECT_EQ(reader.manifest().files.size(), 3u);
  for (const i64 row : {0, 2, 4}) {
    const Region rows = full_region({shape, {row, 0}, {2, 8}});
    for (const auto& [name, dtype] : {std::pair{"model/w", DType::BF16}, {"optimizer/exp_avg/w", DType::F32}}) {
      NamedShard target(name, rows.box, Tensor::zeros({2, 8}, dtype, device_));
      reader.read(target);
      EXPECT_TRUE(same_bits(target.data, numbered(name, rows, dtype).data));
    }
  }
  // A collective verification, with the reading shared, returns the same result on all ranks.
  std::vector<std::vector<Path>> to_try(kRanks);
  run_local_ranks(kRanks, [&](Communicator& world, int rank) {
    to_try[static_cast<std::size_t>(rank)] = load_candidates(folder_, world);
    EXPECT_FALSE(find_damage(directory, world, /*should_verify_checksums=*/true));
  });
  for (const auto& paths : to_try) EXPECT_EQ(paths, std::vector{directory});
}

TEST_F(CheckpointWriterTest, FailsOnAllRanksAndLeavesNothingWhenOneRankFails) {
  const auto errors = errors_of_ranks(2, [&](Communicator& world) {
    const i64 rank = world.rank();
    const std::vector<NamedShard> rank_shards{numbered("model/w", full_region({{4}, {2 * rank}, {2}}))};
    struct Broken final : ShardSource {
      explicit Broken(std::span<const NamedShard> shards, bool broken) : list(shards), broken_(broken) {}
      std::span<const ShardSpec> shards() const override { return list.shards(); }
      Tensor data(std::size_t i) override {
        check_input(!broken_, "the source broke");
        return list.data(i);
      }
      test::ShardList list;
      bool broken_;
    } source(rank_shards, rank == 1);
    save_checkpoint(folder_, {.iteration = 7}, source, world, Log(world.rank()));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 1: the source broke");
  EXPECT_TRUE(entries().empty());
}

TEST_F(CheckpointWriterTest, RejectsGapsOverlapsAndInconsistentShapes) {
  const auto attempt = [&](const std::vector<NamedShard>& shards) { return error_of([&] { save(1, shards); }); };
  const auto part = [&](i64 begin, i64 size) { return numbered("model/w", full_region({{10}, {begin}, {size}})); };
  EXPECT_CONTAINS(attempt({part(0, 4), part(5, 5)}), "tensor model/w: only 9 of 10 elements");
  EXPECT_CONTAINS(attempt({part(0, 6), part(5, 5)}), "overlap");
  EXPECT_CONTAINS(attempt({part(0, 10), part(0, 10)}), "is in two shards");
  EXPECT_CONTAINS(attempt({part(0, 5), numbered("model/w", full_region({{11}, {5}, {5}}))}), "global shape");
  EXPECT_TRUE(entries().empty());
  EXPECT_EQ(attempt({part(0, 4), part(4, 6)}), "");
}

TEST_F(CheckpointWriterTest, ReplacesCheckpointOfSameIteration) {
  save(5, std::vector{numbered("model/w", {4})});
  save(5, std::vector{numbered("model/w", {4}, DType::F32, 10)});
  CheckpointReader reader(folder_ / "iter_0000005");
  EXPECT_EQ(load(reader.read_full_tensor("model/w", device_), 0), 10);
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000005", "latest"}));
}

TEST_F(CheckpointWriterTest, NeverPrunesLatestCheckpoint) {
  const std::vector shards{numbered("model/w", {4})};
  for (i64 i = 1; i <= 6; ++i) save(i, shards, {.keep_latest_k = 2, .save_retain_interval = 3});
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000003", "iter_0000005", "iter_0000006", "latest"}));
  write_file_atomic(folder_ / "latest", "iter_0000003\n");
  prune(folder_, {.keep_latest_k = 1}, log_);
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000003", "iter_0000005", "iter_0000006", "latest"}));
  fs::remove(folder_ / "latest");
  prune(folder_, {.keep_latest_k = 1}, log_);
  EXPECT_EQ(entries().size(), 3u) << "nothing is removed without latest";
}

TEST_F(CheckpointWriterTest, KeepsAncestorsWhenLatestWasSetBack) {
  const std::vector shards{numbered("model/w", {4})};
  const auto save_branch = [&](i64 iteration, const Lineage& lineage) {
    RunState state{.iteration = iteration};
    if (!lineage.branches.empty()) state.extra[kLineageName] = lineage.text();
    test::save_shards(folder_, state, shards, *self_, log_, {.keep_latest_k = 3});
  };
  const auto set_back = [&](i64 iteration) {
    write_file_atomic(folder_ / "latest", checkpoint_name(iteration) + "\n");
  };
  const auto iterations = [&] {
    std::vector<i64> found;
    for (const Path& checkpoint : checkpoints_in(folder_)) found.push_back(*iteration_of(checkpoint.filename()));
    return found;
  };
  for (i64 i = 10; i <= 60; i += 10) save_branch(i, {});
  set_back(40);
  const Lineage first = continue_lineage({}, 40, folder_);
  EXPECT_EQ(first.text(), "1@40");
  save_branch(45, first);
  save_branch(55, first);
  EXPECT_EQ(iterations(), (std::vector<i64>{40, 45, 50, 55, 60})) << "50 and 60 were abandoned and are not counted";
  EXPECT_EQ(continue_lineage(first, 60, folder_), first) << "there are no newer checkpoints";
  set_back(45);
  const Lineage second = continue_lineage(first, 45, folder_);
  EXPECT_EQ(second.text(), "1@40,2@45");
  save_branch(47, second);
  save_branch(57, second);
  save_branch(67, second);
  EXPECT_EQ(iterations(), (std::vector<i64>{47, 50, 55, 57, 60, 67}));
  set_back(57);
  EXPECT_EQ(continue_lineage(second, 57, folder_).text(), "1@40,2@45,3@57");
}

TEST(LineageTest, IsEmptyForDamagedText) {
  for (const char* text : {"", "1", "1@", "@4", "1@4,", "1@4x", "a@4"})
    EXPECT_EQ(Lineage::parse(text), Lineage{}) << text;
  EXPECT_EQ(Lineage::parse("1@4,12@50").text(), "1@4,12@50");
}

/// The check runs in a child process that may not list the folder, even if the tests run as root.
TEST_F(CheckpointWriterTest, WarnsWhenFolderCannotBeListed) {
  for (i64 i = 1; i <= 2; ++i) save(i, std::vector{numbered("model/w", {4})});
  fs::permissions(folder_, fs::perms(0311));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && (::chown(folder_.c_str(), 65534, 65534) != 0 || ::seteuid(65534) != 0)) ::_exit(2);
    testing::internal::CaptureStderr();
    const std::string error = error_of([&] {
      prune(folder_, {.keep_latest_k = 1}, log_);
      remove_stale_entries(folder_, log_);
    });
    const std::string text = testing::internal::GetCapturedStderr();
    const bool is_warned = text.find("cannot look for old checkpoints in ") != std::string::npos &&
                           text.find("cannot look for files that ended processes left: ") != std::string::npos;
    ::_exit(error.empty() && is_warned ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  fs::permissions(folder_, fs::perms::owner_all);
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000001", "iter_0000002", "latest"}));
}

TEST_F(CheckpointWriterTest, RemovesLeftoversOfDeadProcesses) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto make = [&](const std::string& name) { fs::create_directory(folder_ / name); };
  make(str("iter_0000001.tmp-", host_name(), "-", child));  // Its process has ended.
  make("iter_0000002.tmp-other_host-1");              // It is from a different host, which does not hold the lock.
  make(str("iter_0000003.tmp-", host_name(), "-1"));  // Process 1 is always alive.
  write_file_atomic(folder_ / str("latest.tmp-", host_name(), "-", child, ".0123456789abcdef"), "x");
  write_file_atomic(folder_ / "latest.tmp-other_host-1.0123456789abcdef", "x");
  write_file_atomic(folder_ / str("latest.tmp-", host_name(), "-1.0123456789abcdef"), "x");
  make("notes.tmp-1");
  save(4, std::vector{numbered("model/w", {4})});
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000003.tmp-" + host_name() + "-1", "iter_0000004", "latest",
                                                 "latest.tmp-" + host_name() + "-1.0123456789abcdef", "notes.tmp-1"}));
}

/// A save that is killed at any point leaves the previous checkpoint or the complete new one.
TEST_F(CheckpointWriterTest, LeavesCompleteCheckpointWhenKilledAtAnyPoint) {
  const std::vector<NamedShard> before{numbered("model/w", {1000})}, after{numbered("model/w", {1000}, DType::F32, 1)};
  const auto start = std::chrono::steady_clock::now();
  save(1, before);
  const auto duration = std::chrono::steady_clock::now() - start;
  const auto max_delay = std::chrono::duration_cast<std::chrono::microseconds>(duration).count() * 3 / 2;
  std::mt19937 random(3);
  int completed = 0;
  for (i64 i = 2; i < 42; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      save(i, after, {.keep_latest_k = 1});
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(random() % static_cast<u64>(max_delay)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    completed += WIFEXITED(status) ? 1 : 0;
    const auto good = newest_good(folder_, log_);
    ASSERT_TRUE(good.has_value());
    CheckpointReader reader(*good);
    const bool is_old = *good == folder_ / "iter_0000001";
    ASSERT_TRUE(same_bits(reader.read_full_tensor("model/w", device_), (is_old ? before : after)[0].data));
  }
  save(100, after, {.keep_latest_k = 1});
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000100", "latest"}))
      << completed << " saves completed before the kill";
}

TEST_F(CheckpointWriterTest, ReportsFullDiskAndLeavesNothing) {
  save(1, std::vector{numbered("model/w", {1000})});
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const struct rlimit limit { 1 << 20, 1 << 20 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string error = error_of([&] { save(2, std::vector{numbered("model/w", {1 << 20})}); });
    const ssize_t written = ::write(pipe_ends[1], error.data(), error.size());
    ::_exit(written == static_cast<ssize_t>(error.size()) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::array<char, 4096> text{};
  const ssize_t size = ::read(pipe_ends[0], text.data(), text.size());
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the process must not crash";
  const std::string message(text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  EXPECT_CONTAINS(message, "shard_00000-of-00001.h5 needs 4.0");
  EXPECT_CONTAINS(message, "1.00 MiB (1048576 bytes)");
  EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
  EXPECT_EQ(entries(), (std::vector<std::string>{"iter_0000001", "latest"}));
}

TEST_F(CheckpointWriterTest, ReservesSpaceBeforeReadingTensors) {
  struct Endless final : ShardSource {
    std::span<const ShardSpec> shards() const override { return {&spec, 1}; }
    Tensor data(std::size_t) override { fail(ExitCode::Internal, "data() was called"); }
    ShardSpec spec;
  } source;
  const i64 huge = i64{1} << 50;
  static_cast<Region&>(source.spec) = full_region({{huge}, {0}, {huge}});
  source.spec.name = "model/w";
  const std::string error = error_of([&] { save_checkpoint(folder_, {}, source, *self_, log_); });
  EXPECT_CONTAINS(error, "not enough space");
  EXPECT_CONTAINS(error, "free");
  EXPECT_TRUE(entries().empty());
}

TEST_F(CheckpointWriterTest, NamesUnwritableFolder) {
  write_file_atomic(folder_ / "file", "x");
  const std::vector shards{numbered("model/w", {4})};
  const std::string error =
      error_of([&] { test::save_shards(folder_ / "file", {.iteration = 1}, shards, *self_, log_); });
  EXPECT_CONTAINS(error, (folder_ / "file").string());
}

TEST_F(CheckpointWriterTest, WritesFilesThatH5dumpReads) {
  if (std::system("h5dump --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "h5dump is not installed";
  const Path directory = save(1, std::vector{numbered("model/w.weight", {2, 3}, DType::BF16, 1)});
  const std::string command = "h5dump " + (directory / "shard_00000-of-00001.h5").string() + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::array<char, 1 << 14> text{};
  const std::size_t size = std::fread(text.data(), 1, text.size() - 1, pipe);
  EXPECT_EQ(::pclose(pipe), 0);
  const std::string dump(text.data(), size);
  EXPECT_CONTAINS(dump, "GROUP \"w.weight\"");
  EXPECT_CONTAINS(dump, "16-bit little-endian floating-point");
  EXPECT_CONTAINS(dump, "(0,0): 1, 2, 3,");
  EXPECT_CONTAINS(dump, "global_shape");
}

/// CheckpointSave keeps references to its log and file system, so temporaries must not compile.
template <class LogArgument, class FilesArgument>
constexpr bool can_save_with =
    std::is_constructible_v<CheckpointSave, SaveTarget, RunState, Communicator&, LogArgument, FilesArgument>;
static_assert(can_save_with<const Log&, const FileSystem&>);
static_assert(!can_save_with<const Log&, FileSystem>);
static_assert(!can_save_with<Log, const FileSystem&>);

/// A disconnected process whose folder a different run took over must not publish a checkpoint afterwards.
TEST_F(CheckpointWriterTest, PublishesNothingAfterLockWasTakenOver) {
  save(1, std::vector{numbered("model/w", {4})});
  const FolderLock lock(folder_, log_);
  const FileSystem files;
  for (const SavePoint lost_at : {SavePoint::AfterFiles, SavePoint::BeforeManifest, SavePoint::BeforeLatest}) {
    const std::vector<NamedShard> shards{numbered("model/w", {4})};
    test::ShardList source(shards);
    const auto take_over = [&](SavePoint point) {
      if (point != lost_at) return;
      std::filesystem::remove(folder_ / ".lock");
      overwrite(folder_ / ".lock", "host other, process 1");
    };
    const std::string error = error_of([&] {
      CheckpointSave save({.folder = folder_, .observer = take_over, .lock = &lock}, {.iteration = 2}, *self_, log_,
                          files);
      save.write(source);
      save.gather_and_finish();
    });
    EXPECT_CONTAINS(error, "was taken over by host other, process 1");
    EXPECT_EQ(latest_in(folder_), folder_ / "iter_0000001");
    EXPECT_EQ(checkpoints_in(folder_).size(), lost_at == SavePoint::BeforeLatest ? 2u : 1u);
    std::filesystem::remove(folder_ / ".lock");  // The run continues if the lock file is missing.
  }
}

}  // namespace
}  // namespace mcpp
