// The real program on a disk that fails, with its optimizer's state, its weights or its activations there: it ends with
// the exit code with which a launcher starts it again, names what was lost, and goes on from its last checkpoint to the
// bits of a run that met no fault.
#include <cstring>

#include "checkpoint/folder/folder.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

struct Tier {
  const char* name;
  std::vector<std::string> words;
  const char* what;  ///< is lost, in messages
};

const Tier kTiers[]{
    {"states",
     {"--optimizer.offload=file", "--optimizer.offload_segment_size=5000", "--optimizer.store_param_remainders"},
     "of the optimizer's state"},
    {"weights", {"--optimizer.offload_params=file", "--parallel.zero_stage=3"}, "of the weights"},
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
  };
  struct Transfers {
    u64 reads = 0, writes = 0;
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
                str("FAULTY_DISK_AFTER=", fault.after)};
    if (fault.rank >= 0) words.push_back(str("FAULTY_DISK_RANK=", fault.rank));
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
  /// The run `save` was ended by a fault in its middle: its last checkpoint is good, and leads to the bits of `whole`.
  void expect_goes_on(const std::string& save, const Tier& tier, const std::string& whole) const {
    EXPECT_EQ(disk_.count(), 0U);
    const std::optional<Path> last = latest_in(folder_ / save);
    ASSERT_TRUE(last.has_value());
    EXPECT_CONTAINS(good(training(save, tier)), "resuming from " + last->string());
    expect_same_checkpoint(whole, save);
    EXPECT_EQ(losses(save, 12), losses(whole, 12));
  }

  const test::DiskFolder disk_;
};

TEST_F(FaultyDisk, EndsARunThatGoesOnWithTheSameBits) {
  for (const Tier& tier : kTiers) {
    SCOPED_TRACE(tier.name);
    const std::string name = tier.name, place = "the scratch file in " + disk_.path().string();
    ASSERT_EQ(run_with({}, training(name, tier)).code, 0);
    const Transfers all = transfers();
    EXPECT_GT(all.reads, 24U) << "several in each step";
    EXPECT_GT(all.writes, 24U);
    const auto expect_ends = [&](const std::string& save, const Fault& fault, const std::string& message) {
      const Outcome outcome = run_with(fault, training(save, tier));
      EXPECT_EQ(outcome.code, 75) << outcome.err;
      EXPECT_CONTAINS(outcome.err, message);
      EXPECT_CONTAINS(outcome.err, tier.what);
      EXPECT_CONTAINS(outcome.err, "tart again; the run goes on from its last checkpoint");
      expect_goes_on(save, tier, name);
    };
    const std::string unreadable = "cannot read " + place + ": Input/output error; what was there of ";
    expect_ends(name + "_full", {"full", all.writes / 2},
                "cannot write " + place + ": No space left on device; what was there ");
    // Whether for a step or for a save, in the middle of the run and at its end.
    for (const u64 after : {all.reads / 2, all.reads - 1}) {
      expect_ends(str(name, "_unreadable_", after), {"read_error", after}, unreadable);
      expect_ends(str(name, "_flipped_", after), {"bit_flip", after}, " differs from its checksum");
    }
  }
}

TEST_F(FaultyDisk, ChangesNothingWhereItIsSlow) {
  for (const Tier& tier : kTiers) {
    const std::string name = tier.name;
    EXPECT_EQ(run_with({}, training(name, tier)).code, 0);
    EXPECT_EQ(run_with({"slow"}, training(name + "_slow", tier)).code, 0);
    expect_same_checkpoint(name, name + "_slow");
  }
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
