// The real program on several ranks under mpirun: it trains the same model as one process, is reproducible, and ends on
// all ranks if one cannot continue.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"
#include "tests/support/build.h"

namespace mcpp {
namespace {

class MultiRankTest : public EndToEndOnRanks {
 protected:
  void expect_near_losses(const std::string& a, const std::string& b) const {
    const std::vector<double> x = losses(a, 12), y = losses(b, 12);
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5 * y[i]) << "iteration " << i + 1;
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

const std::vector<std::string> kEightRanks{
    "--training.micro_batch_size=1",      "--parallel.tensor_model_parallel_size=2",
    "--parallel.sequence_parallel=true",  "--parallel.pipeline_model_parallel_size=2",
    "--parallel.pipeline_schedule=zb-h1", "--parallel.zero_stage=1"};

TEST_F(MultiRankTest, PipelineIsBitwiseIdenticalToOneProcess) {
  const Strings batch{"--training.micro_batch_size=1"};
  train("one", batch);
  train_on(2, "two", {batch[0], "--parallel.pipeline_model_parallel_size=2"});
  EXPECT_EQ(losses("one", 12), losses("two", 12));
  expect_same_checkpoint("one", "two");
}

TEST_F(MultiRankTest, CpuIsaLimitAppliesToAllRanks) {
  for (const char* precision : {"fp32", "bf16"}) {
    const Strings common{"--training.micro_batch_size=1", "--device.cpu_isa=sse4",
                         str("--training.precision=", precision)};
    const std::string one = str("one_", precision), two = str("two_", precision);
    train(one, common);
    train_on(2, two, plus(common, "--parallel.pipeline_model_parallel_size=2"));
    EXPECT_EQ(losses(one, 12), losses(two, 12));
    expect_same_checkpoint(one, two);
  }
}

TEST_F(MultiRankTest, RejectsSaveFolderThatIsNotShared) {
  // Rank 1 has a different file system at this path, in its own mount namespace.
  const std::string other_mount =
      "if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then exec unshare --mount sh -c 'mount -t tmpfs none \"$0\" && exec "
      "\"$@\"' \"" +
      at("run") + "\" \"$@\"; fi; exec \"$@\"";
  if (std::system("unshare --mount sh -c 'mount -t tmpfs none /tmp' 2>/dev/null") != 0)
    GTEST_SKIP() << "mount namespaces are not available";
  mcpp::create_directories(at("run"));
  Strings launcher = mpirun(2);
  launcher.insert(launcher.end(), {"sh", "-c", other_mount, "sh"});
  const Outcome outcome = test::Program(pretrain("run"), root() / "process", 0, launcher).wait();
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "rank 1: host ");
  EXPECT_CONTAINS(outcome.err, "all ranks must share checkpoint.save");
  EXPECT_EQ(outcome.out.find("] iteration"), std::string::npos) << outcome.out;
  EXPECT_EQ(leftovers(at("run")), Strings{});
}

TEST_F(MultiRankTest, PeakMemoryExcludesMfuMeasurement) {
  train_on(2, "given", {"--logging.peak_tflops=1"});
  train_on(2, "measured", {"--logging.peak_tflops=0"});
  const auto peak = [&](const std::string& save) { return metrics(save)[3]["peak_memory_bytes"].get<double>(); };
  EXPECT_GT(peak("given"), 0);
  EXPECT_EQ(peak("measured"), peak("given"));
}

TEST_F(MultiRankTest, ComparesMemoryOfAllRanksWithHost) {
  // Each run needs about 14 TiB and must be rejected before anything is allocated.
  const Strings large{"--model.hidden_size=65536", "--model.num_layers=24", "--training.micro_batch_size=1"};
  const Outcome one = run(pretrain("run", large)), two = run_on(2, pretrain("run", large));
  for (const Outcome& outcome : {one, two}) {
    EXPECT_EQ(outcome.code, 12) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "not enough memory for this run: ");
    EXPECT_CONTAINS(outcome.err, "parallel.zero_stage");
  }
  EXPECT_CONTAINS(one.err, "for this run: it needs ");
  EXPECT_CONTAINS(two.err, "2 ranks need ");
  EXPECT_EQ(run(plus(pretrain("run", large), "--dry_run")).code, 12);
  const Outcome other_mount = run(plus(plus(pretrain("run", large), "--dry_run"), "--world_size=2"));
  EXPECT_EQ(other_mount.code, 0) << other_mount.err;
  EXPECT_CONTAINS(other_mount.err, "so the run does not fit on hosts like this one");
}

TEST_F(MultiRankTest, EightRanksMatchOneRankAndLogOnce) {
  train("one", {"--training.micro_batch_size=1"});
  const std::string log = train_on(8, "eight", kEightRanks);
  expect_near_losses("eight", "one");
  EXPECT_EQ(count(log, "] iteration        3/"), 1u) << log;
  EXPECT_EQ(count(log, "validation loss at iteration 5"), 1u) << log;
  EXPECT_CONTAINS(log, "exposed communication: ");
  EXPECT_CONTAINS(log, "bubble: ");
  EXPECT_CONTAINS(log, "\n     7     1     0     1     1");  // the table of ranks
  EXPECT_EQ(count(log, "  rank   peak memory  parameters   gradients  optimizer state  activations"), 1u) << log;
  EXPECT_EQ(count(log, "\033"), 0u) << "escape codes in a file";
}

TEST_F(MultiRankTest, ResumesBitwiseIdenticallyOnSameLayout) {
  train_on(8, "a", kEightRanks);
  Strings stop = kEightRanks;
  stop.push_back("--training.exit_interval=5");
  train_on(8, "b", stop);
  losses("b", 5);
  EXPECT_CONTAINS(train_on(8, "b", kEightRanks), "resuming from");
  EXPECT_EQ(losses("a", 12), losses("b", 12));
  expect_same_checkpoint("a", "b");
}

/// Compressed messages and gradient factors, and the error feedback of the ranks, over MPI messages and in checkpoints.
TEST_F(MultiRankTest, ResumesBitwiseIdenticallyWithCompressedCommunication) {
  const Strings packed{"--parallel.zero_stage=3", "--parallel.zero_hpz_partition_size=2",
                       "--parallel.zero_quantized_weights=true", "--parallel.zero_quantized_gradients=true"};
  const Strings factors{"--parallel.zero_stage=1", "--parallel.power_sgd_rank=4", "--parallel.power_sgd_start_iter=3"};
  const Strings bf16{"--parallel.zero_stage=1", "--parallel.zero_hpz_partition_size=2",
                     "--parallel.grad_reduce_dtype=bf16"};
  for (const auto& [name, layout] : {std::pair("packed", packed), {"factors", factors}, {"bf16", bf16}}) {
    SCOPED_TRACE(name);
    const std::string whole = str(name, "_whole"), parts = str(name, "_parts");
    Strings options = layout;
    options.push_back("--training.micro_batch_size=1");
    train_on(4, whole, options);
    Strings stop = options;
    stop.push_back("--training.exit_interval=5");
    train_on(4, parts, stop);
    EXPECT_CONTAINS(train_on(4, parts, options), "resuming from");
    EXPECT_EQ(losses(whole, 12), losses(parts, 12));
    expect_same_checkpoint(whole, parts);
  }
}

TEST_F(MultiRankTest, ResumesOnDifferentLayout) {
  const auto train_in_two_parts = [&](const std::string& save, int ranks_before, Strings before, int ranks_after,
                                      Strings after) {
    for (Strings* words : {&before, &after}) words->push_back("--training.micro_batch_size=1");
    before.push_back("--training.exit_interval=5");
    train_on(ranks_before, save, before);
    losses(save, 5);
    EXPECT_CONTAINS(train_on(ranks_after, save, after), "resuming from");
  };
  const std::string pp2 = "--parallel.pipeline_model_parallel_size=2", tp2 = "--parallel.tensor_model_parallel_size=2";
  train("one", {"--training.micro_batch_size=1"});
  train_in_two_parts("pipeline_to_one", 2, {pp2}, 1, {});  // This keeps the order of summation.
  EXPECT_EQ(losses("one", 12), losses("pipeline_to_one", 12));
  expect_same_checkpoint("one", "pipeline_to_one");
  train_in_two_parts("zero3_to_pipeline", 4, {tp2, "--parallel.zero_stage=3"}, 4, {pp2, "--parallel.zero_stage=1"});
  expect_near_losses("zero3_to_pipeline", "one");
}

TEST_F(MultiRankTest, SavesAndStopsAllRanksWhenSignalArrives) {
  const Strings longer{"--training.train_iters=2000", "--training.eval_interval=0", "--training.eval_iters=0",
                       "--checkpoint.save_interval=0"};
  Strings args = pretrain("run", longer);
  test::Program program(args, root() / "process", 0, mpirun(2));
  wait_for_lines("run", 3);
  program.signal(SIGUSR1);  // mpirun forwards this signal
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.out + outcome.err, " received: saving after this microbatch");
  EXPECT_CONTAINS(outcome.out, "saved ");
}

/// mpirun itself ends its ranks immediately on these signals.
TEST_F(MultiRankTest, LaunchScriptSavesOnSignalsThatEndMpirun) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string save = str("signal_", signal);
    const Strings args = pretrain(save, {"-n", "2", "--training.train_iters=200000", "--training.eval_interval=0",
                                         "--training.eval_iters=0", "--checkpoint.save_interval=0"});
    test::Program program(args, root() / "process", 0, script());
    wait_for_lines(save, 3);
    program.signal(signal);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.out, "saved ");
  }
}

TEST_F(MultiRankTest, RejectsImpossibleLayoutWithAllReasons) {
  const Outcome outcome = run_on(
      3, pretrain("run", {"--parallel.tensor_model_parallel_size=3", "--parallel.pipeline_model_parallel_size=3"}));
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  for (const char* part : {"cannot run on 3 ranks", "number of ranks = 3", "the nearest multiple is 9",
                           "num_attention_heads = 4; the nearest that do are 2 and 4", "num_layers"}) {
    EXPECT_CONTAINS(outcome.err, part);
  }
  EXPECT_EQ(count(outcome.err, "megatron_cpp: error"), 1u) << outcome.err;
}

TEST_F(MultiRankTest, RejectsTooFewMicrobatches) {
  const Outcome outcome = run_on(4, pretrain("run"));  // 8 samples with 4 per microbatch are not enough for 4 ranks
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "global_batch_size = 8 is not a multiple of micro_batch_size x data-parallel ranks (4)");
}

TEST_F(MultiRankTest, NamesRankWithDifferentConfiguration) {
  Strings args = pretrain("run", {":", "-n", "1", test::Program::path()});
  const Strings other = pretrain("run", {"--optimizer.lr=1e-3"});
  args.insert(args.end(), other.begin(), other.end());
  const Outcome outcome = run_on(1, args);
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err,
                  "rank 1 has a different configuration than rank 0 (lr = 0.01 on rank 0, lr = 0.001 on rank 1)");
}

TEST_F(MultiRankTest, NamesRankWithDryRun) {
  Strings args = pretrain("run", {":", "-n", "1", test::Program::path()});
  const Strings other = pretrain("run", {"--dry_run"});
  args.insert(args.end(), other.begin(), other.end());
  const Outcome outcome = run_on(1, args);
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "rank 1 has a different task than rank 0 (training on rank 0, dry run on rank 1)");
}

TEST_F(MultiRankTest, DryRunPlansLayoutInOneProcess) {
  Strings args = pretrain("run", kEightRanks);
  args.insert(args.end(), {"--dry_run", "--world_size=8"});
  EXPECT_CONTAINS(run_ok(args), "layout: 8 ranks");
  args.back() = "--world_size=6";
  const Outcome six = run(args);
  EXPECT_EQ(six.code, 2);
  EXPECT_CONTAINS(six.err, "the number of ranks = 6");
  const Outcome no_plan = run(pretrain("run", {"--world_size=8"}));
  EXPECT_EQ(no_plan.code, 2);
  EXPECT_CONTAINS(no_plan.err, "applies only to --dry_run");
}

TEST_F(MultiRankTest, StopsAllRanksBeforeTrainingWhenOneHasTooLittleMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more address space than the limit of this test leaves";
#endif
  const Strings big = pretrain("run", {"--model.hidden_size=2048"});
  Strings args = big;
  const Strings little_memory{":", "-n", "1", "sh", "-c", "ulimit -v 600000; exec \"$@\"", "sh", test::Program::path()};
  args.insert(args.end(), little_memory.begin(), little_memory.end());
  args.insert(args.end(), big.begin(), big.end());
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = run_on(1, args);
  EXPECT_EQ(outcome.code, 12) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "not enough memory for this run");
  EXPECT_CONTAINS(outcome.err, "ulimit -v");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120))
      << "the error was detected only as a hang";
}

TEST_F(MultiRankTest, NamesRankWithDifferentCommand) {
  const Outcome outcome = run_on(1, pretrain("run", {":", "-n", "1", test::Program::path(), "bench", "comm"}));
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "rank 1 has a different command than rank 0 (pretrain on rank 0, bench on rank 1)");
}

TEST_F(MultiRankTest, RejectsRanksForSingleProcessCommands) {
  const Outcome outcome = run_on(2, {"config", "--help"});
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "megatron_cpp config runs in one process, not on 2 ranks");
}

}  // namespace
}  // namespace mcpp
