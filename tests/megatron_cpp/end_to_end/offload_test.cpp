// The real program with its optimizer state on a disk or in host memory. Interrupted, rolled back or killed, it ends
// bitwise identical to a run with the state on the device, and leaves no files behind.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

class OffloadEndToEndTest : public EndToEnd {
 protected:
  /// Arguments for bf16 with segments that do not end at parameter boundaries.
  Strings on_file(const Strings& more = {}) const {
    return joined({"--training.precision=bf16", "--optimizer.offload=file",
                   "--optimizer.offload_folder=" + disk_.path().string(), "--optimizer.offload_segment_size=5000"},
                  more);
  }
  static Strings on_host(const Strings& more = {}) {
    return joined({"--training.precision=bf16", "--optimizer.offload=host"}, more);
  }
  static Strings on_device(const Strings& more = {}) { return joined({"--training.precision=bf16"}, more); }

  const test::DiskFolder disk_;
};

TEST_F(OffloadEndToEndTest, OffloadTierOfStatesMayChangeOnResume) {
  train("whole", on_device());
  EXPECT_CONTAINS(run_ok(pretrain("parts", on_file({"--training.exit_interval=3"}))),
                  "optimizer state: 100% on the disk of " + disk_.path().string());
  EXPECT_CONTAINS(run_ok(pretrain("parts", on_host({"--training.exit_interval=6"}))),
                  "optimizer state: 100% in host memory, ");
  train("parts", on_device({"--training.exit_interval=9"}));
  train("parts", on_file({"--optimizer.offload_fraction=0.5"}));
  expect_same_checkpoint("whole", "parts");
  EXPECT_EQ(losses("whole", 12), losses("parts", 12));
}

TEST_F(OffloadEndToEndTest, OffloadTierOfActivationsMayChangeOnResume) {
  const std::string folder = disk_.path().string();
  train("whole", on_device());
  EXPECT_CONTAINS(
      run_ok(pretrain("parts", on_device({"--training.exit_interval=3", "--training.offload_activations=file",
                                          "--optimizer.offload_folder=" + folder}))),
      "activations: on the disk of " + folder);
  EXPECT_CONTAINS(
      run_ok(pretrain("parts", on_device({"--training.exit_interval=6", "--training.offload_activations=host"}))),
      "activations: in host memory");
  train("parts", on_file({"--training.exit_interval=9", "--training.offload_activations=file",
                          "--training.recompute_granularity=full"}));
  EXPECT_EQ(disk_.count(), 0U);
  train("parts", on_device());
  expect_same_checkpoint("whole", "parts");
  EXPECT_EQ(losses("whole", 12), losses("parts", 12));
}

TEST_F(OffloadEndToEndTest, OffloadTierOfWeightsMayChangeOnResume) {
  const auto stage3 = [](const Strings& more) { return joined(on_device({"--parallel.zero_stage=3"}), more); };
  const std::string folder = "--optimizer.offload_folder=" + disk_.path().string();
  train("whole", stage3({}));
  train("parts", stage3({"--training.exit_interval=3", "--optimizer.offload_params=file", folder}));
  train("parts", stage3({"--training.exit_interval=6", "--optimizer.offload_params=host"}));
  train("parts", stage3({"--training.exit_interval=9", "--optimizer.offload=file", folder}));
  const Strings all{"--parallel.zero_stage=3", "--optimizer.offload_params=file", "--checkpoint.async_save"};
  // The single rank's memory table has columns by class and tier, for weights and states.
  EXPECT_CONTAINS(run_ok(pretrain("parts", on_file(all))),
                  "  rank   peak memory  parameters     on disk   gradients  optimizer state     on disk  activations");
  expect_same_checkpoint("whole", "parts");
  EXPECT_EQ(losses("whole", 12), losses("parts", 12));
  EXPECT_EQ(disk_.count(), 0U);
  const Outcome refused = run(pretrain("run", on_device({"--optimizer.offload_params=host"})));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "requires parallel.zero_stage 3");
}

/// States, then also weights, then also activations are offloaded; each run is killed three times.
TEST_F(OffloadEndToEndTest, LeavesNoFilesWhenKilled) {
  const Strings stage3{"--parallel.zero_stage=3"};
  train("whole", on_device(stage3));
  Strings places = stage3;
  for (const std::string more : {"", "--optimizer.offload_params=file", "--training.offload_activations=file"}) {
    if (!more.empty()) places.push_back(more);
    const std::string save = "killed" + more;
    for (const i64 iteration : {3, 7, 11}) {
      const Strings kill{"--fault_injection.kind=kill", str("--fault_injection.iteration=", iteration)};
      EXPECT_EQ(run(pretrain(save, on_file(joined(places, kill)))).code, -SIGKILL);
      EXPECT_EQ(disk_.count(), 0U);
    }
    train(save, on_file(places));
    expect_same_checkpoint("whole", save);
    EXPECT_EQ(losses("whole", 12), losses(save, 12));
    EXPECT_EQ(disk_.count(), 0U);
  }
}

TEST_F(OffloadEndToEndTest, RollbacksAndSkipsMatchRunWithoutOffload) {
  const Strings nan{"--fault_injection.kind=nan_loss", "--fault_injection.iteration=7"};
  for (const std::string policy : {"rollback", "skip"}) {
    const Strings words = joined(nan, {"--training.nan_policy=" + policy});
    train("near_" + policy, on_device(words));
    train("file_" + policy, on_file(words));
    train("host_" + policy, on_host(words));
    expect_same_checkpoint("near_" + policy, "file_" + policy);
    expect_same_checkpoint("near_" + policy, "host_" + policy);
  }
}

TEST_F(OffloadEndToEndTest, AsyncSavesMatchSynchronousSaves) {
  const Strings often{"--checkpoint.save_interval=1"};
  train("waited", on_device(often));
  for (const Strings& place : {on_file(often), on_host(often)}) {
    train("overlapped", joined(place, {"--checkpoint.async_save"}));
    for (const std::string iteration : {"/iter_0000010", "/iter_0000011", "/iter_0000012"})
      expect_same_checkpoint("waited" + iteration, "overlapped" + iteration);
    std::filesystem::remove_all(folder_ / "overlapped");
  }
}

/// Checkpoints are independent of the formats of the moments, so a run may change them; it is bitwise identical if it
/// does not.
TEST_F(OffloadEndToEndTest, ResumesBitwiseIdenticallyWithLowPrecisionMoments) {
  const Strings bytes{"--optimizer.exp_avg_dtype=uint8", "--optimizer.exp_avg_sq_dtype=uint8"};
  train("whole", on_device(bytes));
  train("parts", on_file(joined(bytes, {"--training.exit_interval=5"})));
  train("parts", on_device(bytes));
  expect_same_checkpoint("whole", "parts");
  const Outcome refused = run(pretrain("parts", on_device({"--training.train_iters=14"})));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "optimizer.exp_avg_dtype");
  train("parts", on_device({"--training.train_iters=14",
                            "--checkpoint.allow_changed_keys=optimizer.exp_avg_dtype,optimizer.exp_avg_sq_dtype"}));
  losses("parts", 14);
}

/// A run may start or stop keeping copies of its master weights at any restart without any effect on the result.
TEST_F(OffloadEndToEndTest, ParamRemaindersMayChangeOnResume) {
  const std::string remainders = "--optimizer.store_param_remainders";
  train("whole", on_device());
  train("parts", on_device({"--training.exit_interval=3", remainders}));
  train("parts", on_device({"--training.exit_interval=6"}));
  train("parts", on_file({"--training.exit_interval=9", remainders, "--checkpoint.async_save"}));
  train("parts", on_host({remainders, "--parallel.zero_stage=1"}));
  expect_same_checkpoint("whole", "parts");
  EXPECT_EQ(losses("whole", 12), losses("parts", 12));
  for (const std::string precision : {"fp32", "fp16"}) {
    const Outcome refused = run(pretrain("run", joined(in_precision(precision), {remainders})));
    EXPECT_EQ(refused.code, 2);
    EXPECT_CONTAINS(refused.err, "--optimizer.store_param_remainders: requires training.precision \"bf16\"");
  }
}

TEST_F(OffloadEndToEndTest, RejectsUnsupportedOffload) {
  Strings nowhere = on_device({"--optimizer.offload=file", "--optimizer.offload_folder=/proc/self"});
  Outcome outcome = run(pretrain("run", nowhere));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: /proc/self: cannot create a file in /proc/self");
  outcome = run(pretrain("run", on_device({"--optimizer.offload=file"})));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: is missing");
  outcome = run(pretrain("run", on_device({"--training.offload_activations=file"})));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: is missing");
  outcome = run(pretrain("run", on_device({"--training.distribute_saved_activations"})));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "training.distribute_saved_activations: only read when recompute_granularity is");
  EXPECT_CONTAINS(outcome.err, "training.distribute_saved_activations: there is one tensor-parallel rank");
  outcome = run(pretrain("run", on_device({"--optimizer.main_grads_dtype=bf16"})));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, ": only read with parallel.zero_stage 2 or 3");
}

/// The check is not limited to the start of a run.
TEST_F(OffloadEndToEndTest, DryRunChecksDisk) {
  const auto dry = [&](const std::string& folder, const Strings& more) {
    return run(pretrain("run", joined(on_device({"--dry_run", "--optimizer.offload_folder=" + folder}), more)));
  };
  const Strings states{"--optimizer.offload=file"};
  Outcome outcome = dry("/dev/shm/mcpp/made", states);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "optimizer.offload_folder: /dev/shm/mcpp/made is in memory (tmpfs)");
  const Path file = folder_ / "file";
  write_file_atomic(file, "");
  outcome = dry(file.string() + "/made", states);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err,
                  "optimizer.offload_folder: " + file.string() + "/made: " + file.string() + ": Not a directory");
  outcome = dry((disk_.path() / "made").string(), joined(states, {"--checkpoint.async_save"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, ", plus the same amount for saves");
  EXPECT_EQ(disk_.count(), 0U) << "a file was written";
}

TEST_F(OffloadEndToEndTest, DryRunReportsPlacement) {
  EXPECT_CONTAINS(run_ok(pretrain("run", on_file({"--dry_run"}))), "  on disk");
  EXPECT_CONTAINS(run_ok(pretrain("run", on_host({"--dry_run"}))), "  in host memory");
  EXPECT_CONTAINS(run_ok(pretrain("run", on_device({"--dry_run", "--training.offload_activations=host"}))),
                  "  in host memory");
}

TEST_F(OffloadEndToEndTest, RejectsFractionThatOffloadsNothing) {
  const Outcome outcome = run(pretrain("run", {"--optimizer.offload=host", "--optimizer.offload_fraction=0.0001"}));
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_CONTAINS(outcome.err, "optimizer.offload_fraction: 0.0001 offloads nothing");
}

}  // namespace
}  // namespace mcpp
