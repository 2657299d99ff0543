// The real program on a disk that fails, with its optimizer's state, its weights or its activations there: it ends with
// the exit code with which a launcher starts it again, names what was lost, and goes on from its last checkpoint to the
// bits of a run that met no fault.
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
  const char* what;     ///< is lost, in messages
  bool is_told = true;  ///< the log says where it is, and how it comes
};

const Tier kTiers[]{
    {"states",
     {"--optimizer.offload=file", "--optimizer.offload_segment_size=5000", "--optimizer.store_param_remainders"},
     "of the optimizer's state"},
    {"weights", {"--optimizer.offload_params=file", "--parallel.zero_stage=3"}, "of the weights", false},
    {"activations",
     {"--training.offload_activations=file", "--model.num_layers=6"},  // more than there are buffers
     "activations"},
};

class FaultyDisk : public EndToEnd {
 protected:
  struct Fault {
    std::string kind = "";
    u64 after = ~u64{0};
    int rank = -1;
    std::string queue = "";      ///< "ring", "seccomp"; otherwise there is no io_uring
    int signal = 0;              ///< of "signal"
    bool is_named = false;       ///< there are no files without a name
    i64 free = -1;               ///< bytes, where it says
    bool is_unreserved = false;  ///< the file system cannot reserve room
  };
  struct Transfers {
    u64 reads = 0, writes = 0, growths = 0;
  };

  Words training(const std::string& save, const Tier& tier, const Words& more = {}) const {
    Words words = pretrain(save, {"--training.precision=bf16", "--optimizer.offload_folder=" + disk_.path().string()});
    words.insert(words.end(), tier.words.begin(), tier.words.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// On a disk with that fault, on one rank or those that `launcher` starts.
  Outcome run_with(const Fault& fault, const Words& args, const Words& launcher = {}) const {
    write_file_atomic(counts(), std::string(sizeof(Transfers), '\0'));
    Words words{"env",
                "LD_PRELOAD=" + (test::binary_folder() / "tests/libmcpp_faulty_disk.so").string(),
                "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
                "FAULTY_DISK_FOLDER=" + disk_.path().string(),
                "FAULTY_DISK_COUNTS=" + counts().string(),
                "FAULTY_DISK=" + fault.kind,
                str("FAULTY_DISK_AFTER=", fault.after),
                "FAULTY_DISK_QUEUE=" + fault.queue,
                str("FAULTY_DISK_SIGNAL=", fault.signal)};
    if (fault.rank >= 0) words.push_back(str("FAULTY_DISK_RANK=", fault.rank));
    if (fault.is_named) words.push_back("FAULTY_DISK_NAMED=1");
    if (fault.free >= 0) words.push_back(str("FAULTY_DISK_FREE=", fault.free));
    if (fault.is_unreserved) words.push_back("FAULTY_DISK_UNRESERVED=1");
    words.insert(words.end(), launcher.begin(), launcher.end());
    return test::Program(args, root() / "process", 0, words).wait();
  }
  /// Of the last run.
  Transfers transfers() const {
    const std::string bytes = read_text_file(counts());
    Transfers found;
    std::memcpy(&found, bytes.data(), sizeof(found));
    return found;
  }
  Path counts() const { return folder_ / "counts"; }
  /// The run, whose disk fails, ends with what says so.
  void expect_ends(const std::string& save, const Tier& tier, const Fault& fault, const std::string& message,
                   const std::string& whole) const {
    const Outcome outcome = run_with(fault, training(save, tier));
    EXPECT_EQ(outcome.code, 75) << outcome.err;
    EXPECT_CONTAINS(outcome.err, message);
    EXPECT_CONTAINS(outcome.err, tier.what);
    EXPECT_CONTAINS(outcome.err, "tart again; the run goes on from its last checkpoint");
    expect_goes_on(save, tier, whole);
  }
  /// The run `save` was ended by a fault in its middle: its last checkpoint is good, and leads to the bits of `whole`.
  void expect_goes_on(const std::string& save, const Tier& tier, const std::string& whole) const {
    EXPECT_EQ(disk_.count(), 0U);
    const std::optional<Path> last = latest_in(folder_ / save);
    ASSERT_TRUE(last.has_value());
    EXPECT_CONTAINS(good(training(save, tier)), "resuming from " + last->string());
    expect_same_checkpoint(whole, save);
    EXPECT_EQ(losses(save, 12), losses(whole, 12));
  }

  std::string place() const { return "the scratch file in " + disk_.path().string(); }
  std::string full() const { return "cannot write " + place() + ": No space left on device; what was there of "; }
  std::string unreadable() const { return "cannot read " + place() + ": Input/output error; what was there of "; }

  const test::DiskFolder disk_;
};

TEST_F(FaultyDisk, EndsARunThatGoesOnWithTheSameBits) {
  for (const Tier& tier : kTiers) {
    SCOPED_TRACE(tier.name);
    const std::string name = tier.name;
    ASSERT_EQ(run_with({}, training(name, tier)).code, 0);
    const Transfers all = transfers();
    EXPECT_GT(all.reads, 24U) << "several in each step";
    EXPECT_GT(all.writes, 24U);
    expect_ends(name + "_full", tier, {"full", all.writes / 2}, full(), name);
    // Whether for a step or for a save, in the middle of the run and at its end.
    for (const u64 after : {all.reads / 2, all.reads - 1}) {
      expect_ends(str(name, "_unreadable_", after), tier, {"read_error", after}, unreadable(), name);
      expect_ends(str(name, "_flipped_", after), tier, {"bit_flip", after}, " differs from its checksum", name);
    }
  }
}

/// The same where io_uring carries what is transferred: its entries fail, not calls.
TEST_F(FaultyDisk, OfARingEndsARunThatGoesOnWithTheSameBits) {
  if (!make_ring_queue()) GTEST_SKIP() << "the system does not permit io_uring here";
  for (const Tier& tier : kTiers) {
    SCOPED_TRACE(tier.name);
    const std::string name = tier.name;
    const Outcome outcome = run_with({.queue = "ring"}, training(name, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (tier.is_told) {
      EXPECT_CONTAINS(outcome.out, "by io_uring");
    }
    const Transfers all = transfers();
    EXPECT_GT(all.reads, 24U);
    EXPECT_GT(all.writes, 24U);
    expect_ends(name + "_full", tier, {.kind = "full", .after = all.writes / 2, .queue = "ring"}, full(), name);
    expect_ends(name + "_unreadable", tier, {.kind = "read_error", .after = all.reads / 2, .queue = "ring"},
                unreadable(), name);
  }
}

/// Slow, doing half of what it is asked for, interrupted by signals; through calls and through a ring.
TEST_F(FaultyDisk, ChangesNothingWhereAllIsTransferredInTheEnd) {
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

/// As in many containers, whose filter of system calls knows no io_uring.
TEST_F(FaultyDisk, ChangesNothingWhereAFilterRefusesTheRing) {
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, refused = name + "_refused";
    good(training(name, tier));
    const Outcome outcome = run_with({.queue = "seccomp"}, training(refused, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (tier.is_told) {
      EXPECT_CONTAINS(outcome.out, "by threads");
    }
    expect_same_checkpoint(name, refused);
  }
}

/// Before anything is trained, and in a dry run.
TEST_F(FaultyDisk, HasNotTheRoomFromTheFirst) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  for (const Tier& tier : kTiers) {
    for (const Words& more : {Words{}, Words{"--dry_run"}}) {
      const Outcome outcome = run_with({.free = 20'000}, training("refused", tier, more));
      EXPECT_EQ(outcome.code, 2);
      EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: " + disk_.path().string() +
                                       ": not enough room for this training: it needs ");
      EXPECT_CONTAINS(outcome.err, " and what its disk has left is 16.00 KiB");
    }
  }
  // Enough for one rank.
  const Outcome alone = run_with({.free = 4'000'000}, training("two", kTiers[2], {"--dry_run"}));
  EXPECT_EQ(alone.code, 0) << alone.err;
  const Outcome two = run_with({.free = 4'000'000}, training("two", kTiers[2], {"--dry_run"}), mpirun(2));
  EXPECT_EQ(two.code, 2);
  EXPECT_CONTAINS(two.err, "not enough room for this training: 2 ranks need ");
}

/// As ext2 and NFS 3: then zeros take the room before the training begins, or do not find it.
TEST_F(FaultyDisk, ChangesNothingWhereRoomCannotBeReserved) {
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, written = name + "_written";
    good(training(name, tier));
    const Outcome outcome = run_with({.is_unreserved = true}, training(written, tier));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same_checkpoint(name, written);
    const Outcome refused = run_with({.kind = "full", .after = 0, .is_unreserved = true}, training("full", tier));
    EXPECT_EQ(refused.code, 2);
    EXPECT_CONTAINS(refused.err, "free some, or name another disk: No space left on device");
  }
}

/// Told to stop, or killed, while something is transferred: what it goes on from is a checkpoint, on other ranks and
/// from another place too, and the folder has nothing that could be taken for one, where files need a name neither.
TEST_F(FaultyDisk, IsLeftInTheMiddleOfATransfer) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Tier everything{
      "everything",
      {"--optimizer.offload=file", "--optimizer.offload_segment_size=5000", "--optimizer.offload_params=file",
       "--parallel.zero_stage=3", "--training.offload_activations=file", "--model.num_layers=6",
       "--model.untie_embeddings_and_output_weights"},  // whose sum would have another order on other stages
      ""};
  const Words elsewhere{"--training.precision=bf16",
                        "--optimizer.offload=host",
                        "--optimizer.offload_params=host",
                        "--parallel.zero_stage=3",
                        "--parallel.pipeline_model_parallel_size=2",
                        "--model.num_layers=6",
                        "--model.untie_embeddings_and_output_weights"};
  ASSERT_EQ(run_with({}, training("whole", everything)).code, 0);
  const u64 middle = transfers().writes / 2;
  for (const int signal : {SIGTERM, SIGUSR1, SIGKILL}) {
    for (const bool is_named : {false, true}) {
      const std::string save = str("signal_", signal, is_named ? "_named" : "");
      SCOPED_TRACE(save);
      const Outcome outcome = run_with({.kind = "signal", .after = middle, .signal = signal, .is_named = is_named},
                                       training(save, everything));
      EXPECT_EQ(outcome.code, signal == SIGKILL ? -SIGKILL : 85) << outcome.err;
      EXPECT_EQ(disk_.count(), 0U);
      EXPECT_LT(metrics(save).size(), metrics("whole").size());
      const Outcome rest = run_on(2, pretrain(save, elsewhere));
      EXPECT_EQ(rest.code, 0) << rest.out << rest.err;
      EXPECT_CONTAINS(rest.out, "resuming from ");
      expect_same_checkpoint("whole", save);
      EXPECT_EQ(losses(save, 12), losses("whole", 12));
    }
  }
}

/// What a dead run of this host may have left of a file that needed a name is removed; all else in the folder is
/// neither read nor touched.
TEST_F(FaultyDisk, HasOthersFilesInItsFolder) {
  const Path left = disk_.path() / ("scratch.tmp-" + host_name() + "-999999999.0123456789abcdef");
  const Path others[]{disk_.path() / "scratch.tmp-another-host-1.0123456789abcdef", disk_.path() / "scratch",
                      disk_.path() / ("scratch.tmp-" + host_name() + "-1.0123456789abcdef")};
  write_file_atomic(left, std::string(100'000, 'x'));
  for (const Path& other : others) write_file_atomic(other, std::string(100'000, 'x'));
  const Tier& states = kTiers[0];
  good(training("run", states));
  EXPECT_FALSE(std::filesystem::exists(left));
  for (const Path& other : others) {
    EXPECT_EQ(read_text_file(other), std::string(100'000, 'x')) << other;
    std::filesystem::remove(other);
  }
  good(training("alone", states));
  expect_same_checkpoint("alone", "run");
}

/// Activations of experts that are not equally busy: their file has to grow, and the disk has no more room.
TEST_F(FaultyDisk, HasNoRoomForActivationsThatGrow) {
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
  EXPECT_CONTAINS(outcome.err, "cannot extend " + place() +
                                   ": No space left on device; what was there of the activations is lost. Start again");
  EXPECT_EQ(disk_.count(), 0U);
  EXPECT_EQ(run_on(2, training("grown", experts)).code, 0);
  expect_same_checkpoint("whole", "grown");
}

/// The folder goes while the run uses it: what it has there needs no name.
TEST_F(FaultyDisk, ChangesNothingWhereItsFolderIsRemoved) {
  const Words slowly{"--fault_injection.kind=slow", "--fault_injection.iterations=0", "--fault_injection.seconds=0.05"};
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name, removed = name + "_removed";
    good(training(name, tier));
    test::Program program(training(removed, tier, slowly), root() / "process");
    wait_for_lines(removed, 3);
    std::filesystem::remove_all(disk_.path());
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same_checkpoint(name, removed);
  }
}

/// Of one of two ranks: all end, with the code that says so.
TEST_F(FaultyDisk, OfOneRankEndsAll) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Tier& weights = kTiers[1];
  ASSERT_EQ(run_with({.rank = 1}, training("whole", weights), mpirun(2)).code, 0);
  const Transfers all = transfers();
  for (const Fault& fault : {Fault{"full", all.writes / 2, 1}, Fault{"bit_flip", all.reads / 2, 1}}) {
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
