// The real program on a failing disk that holds its optimizer state, weights or activations. The program exits with the
// code that requests a restart, names the lost data, and resumes from its last checkpoint bitwise identical to a run
// without faults.
#include <csignal>
#include <cstring>

#include "base/io/transfer_queue.h"
#include "base/machine.h"
#include "checkpoint/directory/folder.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

struct Tier {
  const char* name;
  std::vector<std::string> words;
  const char* lost_data;  ///< lost data, as named in messages
  bool is_logged = true;  ///< true if the log states the location and the transfer method
};

const Tier kTiers[]{
    {"states",
     {"--optimizer.offload=file", "--optimizer.offload_segment_size=5000", "--optimizer.store_param_remainders"},
     "of the optimizer's state"},
    {"weights", {"--optimizer.offload_params=file", "--parallel.zero_stage=3"}, "of the weights", false},
    {"activations",
     {"--training.offload_activations=file", "--model.num_layers=6"},  // more layers than there are buffers
     "activations"},
};

class FaultyDiskTest : public EndToEnd {
 protected:
  struct Fault {
    std::string kind = "";
    u64 after = ~u64{0};
    int rank = -1;
    std::string queue = "";       ///< "ring", "seccomp"; otherwise there is no io_uring
    int signal = 0;               ///< for kind "signal"
    bool needs_names = false;     ///< true if the file system has no unnamed files
    i64 free = -1;                ///< reported free bytes; -1 = the real value
    bool cannot_reserve = false;  ///< true if the file system cannot reserve space
  };
  struct Transfers {
    u64 reads = 0, writes = 0, growths = 0;
  };

  Strings training(const std::string& save, const Tier& tier, const Strings& more = {}) const {
    Strings words =
        pretrain(save, {"--training.precision=bf16", "--optimizer.offload_folder=" + disk_.path().string()});
    words.insert(words.end(), tier.words.begin(), tier.words.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Runs the program on a disk with this fault, on one rank or on the ranks that `launcher` starts.
  Outcome run_with(const Fault& fault, const Strings& args, const Strings& launcher = {}) const {
    write_file_atomic(counts(), std::string(sizeof(Transfers), '\0'));
    Strings words{"env",
                  "LD_PRELOAD=" + (test::binary_folder() / "tests/libmcpp_faulty_disk.so").string(),
                  "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
                  "FAULTY_DISK_FOLDER=" + disk_.path().string(),
                  "FAULTY_DISK_COUNTS=" + counts().string(),
                  "FAULTY_DISK=" + fault.kind,
                  str("FAULTY_DISK_AFTER=", fault.after),
                  "FAULTY_DISK_QUEUE=" + fault.queue,
                  str("FAULTY_DISK_SIGNAL=", fault.signal)};
    if (fault.rank >= 0) words.push_back(str("FAULTY_DISK_RANK=", fault.rank));
    if (fault.needs_names) words.push_back("FAULTY_DISK_NAMED=1");
    if (fault.free >= 0) words.push_back(str("FAULTY_DISK_FREE=", fault.free));
    if (fault.cannot_reserve) words.push_back("FAULTY_DISK_UNRESERVED=1");
    words.insert(words.end(), launcher.begin(), launcher.end());
    return test::Program(args, root() / "process", 0, words).wait();
  }
  /// Returns the transfers of the last run.
  Transfers transfers() const {
    const std::string bytes = read_text_file(counts());
    Transfers found;
    std::memcpy(&found, bytes.data(), sizeof(found));
    return found;
  }
  Path counts() const { return folder_ / "counts"; }
  /// Expects that the run fails because of the disk, with `message`, and resumes.
  void expect_ends(const std::string& save, const Tier& tier, const Fault& fault, const std::string& message,
                   const std::string& whole) const {
    const Outcome outcome = run_with(fault, training(save, tier));
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_CONTAINS(outcome.err, message);
    EXPECT_CONTAINS(outcome.err, tier.lost_data);
    EXPECT_CONTAINS(outcome.err, " resumes from its last checkpoint");
    expect_resumes(save, tier, whole);
  }
  /// Expects that the last checkpoint of `save`, a run that a fault interrupted, is intact and that the run resumes
  /// from it bitwise identical to `whole`.
  void expect_resumes(const std::string& save, const Tier& tier, const std::string& whole) const {
    EXPECT_EQ(disk_.count(), 0U);
    const std::optional<Path> last = latest_in(folder_ / save);
    ASSERT_TRUE(last.has_value());
    EXPECT_CONTAINS(run_ok(training(save, tier)), "resuming from " + last->string());
    expect_same_checkpoint(whole, save);
    EXPECT_EQ(losses(save, 12), losses(whole, 12));
  }

  std::string place() const { return "the scratch file in " + disk_.path().string(); }
  std::string full() const { return "cannot write " + place() + ": No space left on device; the stored part of "; }
  std::string unreadable() const { return "cannot read " + place() + ": Input/output error; the stored part of "; }

  const test::DiskFolder disk_;
};

TEST_F(FaultyDiskTest, ResumesBitwiseIdenticallyAfterDiskFailure) {
  for (const Tier& tier : kTiers) {
    SCOPED_TRACE(tier.name);
    const std::string name = tier.name;
    ASSERT_EQ(run_with({}, training(name, tier)).code, 0);
    const Transfers total = transfers();
    EXPECT_GT(total.reads, 24U) << "several in each step";
    EXPECT_GT(total.writes, 24U);
    expect_ends(name + "_full", tier, {"full", total.writes / 2}, full(), name);
    // The read is for a step or for a save, in the middle and at the end of the run.
    for (const u64 after : {total.reads / 2, total.reads - 1}) {
      expect_ends(str(name, "_unreadable_", after), tier, {"read_error", after}, unreadable(), name);
      expect_ends(str(name, "_flipped_", after), tier, {"bit_flip", after}, " differs from its checksum", name);
    }
  }
}

/// With io_uring, queue entries fail instead of calls.
TEST_F(FaultyDiskTest, ResumesBitwiseIdenticallyAfterIoUringFailure) {
  if (!make_ring_queue()) GTEST_SKIP() << "the system does not permit io_uring here";
  for (const Tier& tier : kTiers) {
    SCOPED_TRACE(tier.name);
    const std::string name = tier.name;
    const Outcome outcome = run_with({.queue = "ring"}, training(name, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (tier.is_logged) {
      EXPECT_CONTAINS(outcome.out, "by io_uring");
    }
    const Transfers total = transfers();
    EXPECT_GT(total.reads, 24U);
    EXPECT_GT(total.writes, 24U);
    expect_ends(name + "_full", tier, {.kind = "full", .after = total.writes / 2, .queue = "ring"}, full(), name);
    expect_ends(name + "_unreadable", tier, {.kind = "read_error", .after = total.reads / 2, .queue = "ring"},
                unreadable(), name);
  }
}

/// The disk is slow, transfers half of each request or is interrupted by signals, with system calls and with io_uring.
TEST_F(FaultyDiskTest, IsBitwiseIdenticalWhenDiskIsSlowOrTransfersAreShort) {
  std::vector<std::string> queues{""};
  if (make_ring_queue()) queues.emplace_back("ring");
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name;
    EXPECT_EQ(run_with({}, training(name, tier)).code, 0);
    for (const std::string& queue : queues) {
      for (const std::string kind : {"slow", "short", "interrupted"}) {
        const std::string save = name + "_" + kind + queue;
        SCOPED_TRACE(save);
        const Outcome outcome = run_with({.kind = kind, .queue = queue}, training(save, tier));
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        expect_same_checkpoint(name, save);
      }
    }
  }
}

/// System call filters of many containers refuse io_uring.
TEST_F(FaultyDiskTest, FallsBackToThreadsWhenIoUringIsRefused) {
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, refused = name + "_refused";
    run_ok(training(name, tier));
    const Outcome outcome = run_with({.queue = "seccomp"}, training(refused, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (tier.is_logged) {
      EXPECT_CONTAINS(outcome.out, "by threads");
    }
    expect_same_checkpoint(name, refused);
  }
}

/// The error comes before training, and also in a dry run.
TEST_F(FaultyDiskTest, RefusesToStartWithoutEnoughSpace) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  for (const Tier& tier : kTiers) {
    for (const Strings& more : {Strings{}, Strings{"--dry_run"}}) {
      const Outcome outcome = run_with({.free = 20'000}, training("refused", tier, more));
      EXPECT_EQ(outcome.code, 2);
      EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: " + disk_.path().string() +
                                       ": not enough space for this run: it needs ");
      EXPECT_CONTAINS(outcome.err, "but the free space of its disk is 16.00 KiB");
    }
  }
  // The free space is enough for one rank.
  const Outcome alone = run_with({.free = 4'000'000}, training("two", kTiers[2], {"--dry_run"}));
  EXPECT_EQ(alone.code, 0) << alone.err;
  const Outcome two = run_with({.free = 4'000'000}, training("two", kTiers[2], {"--dry_run"}), mpirun(2));
  EXPECT_EQ(two.code, 2);
  EXPECT_CONTAINS(two.err, "not enough space for this run: 2 ranks need ");
}

/// ext2 and NFS 3 cannot reserve space. Zeros are written before training instead, or the disk turns out to be
/// full.
TEST_F(FaultyDiskTest, WritesZerosWhenSpaceCannotBeReserved) {
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, written = name + "_written";
    run_ok(training(name, tier));
    const Outcome outcome = run_with({.cannot_reserve = true}, training(written, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same_checkpoint(name, written);
    const Outcome refused = run_with({.kind = "full", .after = 0, .cannot_reserve = true}, training("full", tier));
    EXPECT_EQ(refused.code, 2);
    EXPECT_CONTAINS(refused.err, "free some, or choose a different disk: No space left on device");
  }
}

/// The run is stopped or killed during a transfer. It resumes from a checkpoint, also on other ranks and with a
/// different placement. The folder keeps nothing that could be mistaken for a checkpoint, even if files need names.
TEST_F(FaultyDiskTest, ResumesAnywhereWhenStoppedDuringTransfer) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Tier everything{
      "everything",
      {"--optimizer.offload=file", "--optimizer.offload_segment_size=5000", "--optimizer.offload_params=file",
       "--parallel.zero_stage=3", "--training.offload_activations=file", "--model.num_layers=6",
       // because its gradient would be summed in a different order on other stages
       "--model.untie_embeddings_and_output_weights"},
      ""};
  const Strings other_placement{"--training.precision=bf16",
                                "--optimizer.offload=host",
                                "--optimizer.offload_params=host",
                                "--parallel.zero_stage=3",
                                "--parallel.pipeline_model_parallel_size=2",
                                "--model.num_layers=6",
                                "--model.untie_embeddings_and_output_weights"};
  ASSERT_EQ(run_with({}, training("whole", everything)).code, 0);
  const u64 middle = transfers().writes / 2;
  for (const int signal : {SIGTERM, SIGUSR1, SIGKILL}) {
    for (const bool needs_names : {false, true}) {
      const std::string save = str("signal_", signal, needs_names ? "_named" : "");
      SCOPED_TRACE(save);
      const Outcome outcome =
          run_with({.kind = "signal", .after = middle, .signal = signal, .needs_names = needs_names},
                   training(save, everything));
      EXPECT_EQ(outcome.code, signal == SIGKILL ? -SIGKILL : 85) << outcome.err;
      EXPECT_EQ(disk_.count(), 0U);
      EXPECT_LT(metrics(save).size(), metrics("whole").size());
      const Outcome rest = run_on(2, pretrain(save, other_placement));
      EXPECT_EQ(rest.code, 0) << rest.out << rest.err;
      EXPECT_CONTAINS(rest.out, "resuming from ");
      expect_same_checkpoint("whole", save);
      EXPECT_EQ(losses(save, 12), losses("whole", 12));
    }
  }
}

/// Named scratch files of a dead run of this host are removed. All other files in the folder are neither read nor
/// changed.
TEST_F(FaultyDiskTest, KeepsForeignFilesInFolder) {
  const Path stale_file = disk_.path() / ("scratch.tmp-" + host_name() + "-999999999.0123456789abcdef");
  const Path foreign_files[]{disk_.path() / "scratch.tmp-another-host-1.0123456789abcdef", disk_.path() / "scratch",
                             disk_.path() / ("scratch.tmp-" + host_name() + "-1.0123456789abcdef")};
  write_file_atomic(stale_file, std::string(100'000, 'x'));
  for (const Path& other : foreign_files) write_file_atomic(other, std::string(100'000, 'x'));
  const Tier& states = kTiers[0];
  run_ok(training("run", states));
  EXPECT_FALSE(std::filesystem::exists(stale_file));
  for (const Path& other : foreign_files) {
    EXPECT_EQ(read_text_file(other), std::string(100'000, 'x')) << other;
    std::filesystem::remove(other);
  }
  run_ok(training("alone", states));
  expect_same_checkpoint("alone", "run");
}

/// Activations of unevenly loaded experts: their file has to grow while the disk is full.
TEST_F(FaultyDiskTest, NamesFullDiskWhenActivationsGrow) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Tier experts{"experts",
                     {"--training.offload_activations=file", "--model.num_experts=2", "--model.moe_router_topk=1",
                      "--model.moe_router_pre_softmax", "--model.num_layers=4", "--model.hidden_size=64",
                      "--model.seq_length=128", "--parallel.expert_model_parallel_size=2"},
                     "the activations"};
  const auto run = [&](const std::string& save, const Fault& fault) {
    return run_with(fault, training(save, experts), mpirun(2));
  };
  ASSERT_EQ(run("whole", {}).code, 0);
  const u64 growths = transfers().growths;
  ASSERT_GT(growths, 0U) << "no file grew";
  const Outcome outcome = run("grown", {.kind = "no_growth", .after = growths - 1});
  EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err,
                  "cannot extend " + place() +
                      ": No space left on device; the stored part of the activations is lost. Restart the run");
  EXPECT_EQ(disk_.count(), 0U);
  EXPECT_EQ(run_on(2, training("grown", experts)).code, 0);
  expect_same_checkpoint("whole", "grown");
}

/// The folder is removed while the run uses it; the scratch files need no name.
TEST_F(FaultyDiskTest, IsBitwiseIdenticalWhenFolderIsRemoved) {
  const Strings slow_args{"--fault_injection.kind=slow", "--fault_injection.iterations=0",
                          "--fault_injection.seconds=0.05"};
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, removed = name + "_removed";
    run_ok(training(name, tier));
    test::Program program(training(removed, tier, slow_args), root() / "process");
    wait_for_lines(removed, 3);
    std::filesystem::remove_all(disk_.path());
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same_checkpoint(name, removed);
  }
}

/// The disk of one of two ranks fails: all ranks stop with the exit code for a restart.
TEST_F(FaultyDiskTest, StopsAllRanksWhenDiskOfOneRankFails) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Tier& weights = kTiers[1];
  ASSERT_EQ(run_with({.rank = 1}, training("whole", weights), mpirun(2)).code, 0);
  const Transfers total = transfers();
  for (const Fault& fault : {Fault{"full", total.writes / 2, 1}, Fault{"bit_flip", total.reads / 2, 1}}) {
    const Outcome outcome = run_with(fault, training(fault.kind, weights), mpirun(2));
    EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "[rank 1] megatron_cpp: error: ");
    EXPECT_EQ(disk_.count(), 0U);
    EXPECT_EQ(run_on(2, training(fault.kind, weights)).code, 0);
    expect_same_checkpoint("whole", fault.kind);
  }
}

}  // namespace
}  // namespace mcpp
