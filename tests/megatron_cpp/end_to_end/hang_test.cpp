// Ranks that stop or die: the real program under mpirun ends on all ranks, in time, with the exit code that requests a
// restart, and names the ranks that do not respond.
#include <signal.h>

#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;

class HangTest : public EndToEndOnRanks {
 protected:
  /// Returns the arguments of an endless training on `ranks` ranks, for the launch script.
  Strings endless(const std::string& save, int ranks, const Strings& layout,
                  std::chrono::duration<double> limit) const {
    Strings args =
        pretrain(save, {"-n", std::to_string(ranks), "--training.train_iters=200000", "--training.eval_interval=0",
                        "--training.eval_iters=0", "--checkpoint.save_interval=0", "--training.micro_batch_size=1",
                        // The limit applies to steps only; start-up may be slow on a busy host.
                        str("--parallel.step_timeout_minutes=", limit.count() / 60)});
    args.insert(args.end(), layout.begin(), layout.end());
    return args;
  }
  struct Result {
    Outcome outcome;
    std::chrono::duration<double> after;
  };
  /// Sends `signal` to one rank of a run and returns how and when the run ends.
  Result signal_rank(int ranks, const Strings& layout, int target_rank, int signal,
                     std::chrono::duration<double> limit = kLimit) const {
    test::Program program(endless("run", ranks, layout, limit), root() / "process", 0, script());
    wait_for_lines("run", 5);
    ::kill(process_of(target_rank, "run"), signal);
    const Clock::time_point start = Clock::now();
    Outcome outcome = program.wait();
    return {.outcome = std::move(outcome), .after = Clock::now() - start};
  }
  void expect_hang_is_found(int ranks, const Strings& layout, int target_rank, const std::string& operation) const {
    const auto [outcome, after] = signal_rank(ranks, layout, target_rank, SIGSTOP);
    EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "megatron_cpp: error: hang: has waited");
    EXPECT_CONTAINS(outcome.err, operation);
    EXPECT_CONTAINS(outcome.err, str("rank ", target_rank, " does not answer"));
    EXPECT_CONTAINS(outcome.err, str("missing because not running: rank ", target_rank, "\n"));
    EXPECT_LT(after, kSoon) << "a few seconds on an idle machine";
  }

  static constexpr std::chrono::duration<double> kLimit{3};
  /// Well below the ten minutes after which waiting ranks end the run in any case.
  static constexpr std::chrono::seconds kSoon{120};
};

TEST_F(HangTest, StopsAllRanksWhenTensorParallelRankStalls) {
  expect_hang_is_found(2, {"--parallel.tensor_model_parallel_size=2"}, 1, "in tp (ranks 0 1), iteration");
}

TEST_F(HangTest, StopsAllRanksWhenDataParallelRankStalls) {
  expect_hang_is_found(2, {"--parallel.zero_stage=3"}, 0, "in dp_shard (ranks 0 1), iteration");
}

TEST_F(HangTest, StopsAllRanksWhenPipelineStageStalls) {
  expect_hang_is_found(4, {"--parallel.pipeline_model_parallel_size=2", "--parallel.tensor_model_parallel_size=2"}, 3,
                       " in pp");
}

TEST_F(HangTest, StopsAllRanksImmediatelyWhenOneIsKilled) {
  const auto [outcome, after] = signal_rank(2, {}, 1, SIGKILL, std::chrono::minutes(10));
  EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err.find("hang"), std::string::npos) << outcome.err;
  EXPECT_LT(after, kSoon) << "two seconds on an idle machine";
}

/// Before MPI is initialized nothing else would detect the missing rank.
TEST_F(HangTest, StopsAllRanksWhenOneNeverReachesMpiInit) {
  for (const char* end : {"exec sleep 1000", "kill -STOP $$", "exit 0"}) {
    const std::string peer = str("if [ $OMPI_COMM_WORLD_RANK = 1 ]; then ", end, "; fi; exec \"$@\"");
    Strings launcher = mpirun(2);
    launcher.insert(launcher.begin() + 1, "MEGATRON_CPP_START_TIMEOUT_MINUTES=0.05");
    launcher.insert(launcher.end(), {"sh", "-c", peer, "sh"});
    const Clock::time_point start = Clock::now();
    const Outcome outcome = test::Program(pretrain("run"), root() / "process", 0, launcher).wait();
    EXPECT_EQ(outcome.code, 75) << end << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "[rank 0] megatron_cpp: error: MPI_Init has waited 3.0s for the other ranks");
    EXPECT_LT(Clock::now() - start, kSoon) << end;
  }
}

TEST_F(HangTest, HandlesSignalsWhileWaitingForMpiInit) {
  const std::string peer = "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 1000; fi; trap '' TERM USR1; echo $$ >" +
                           at("waits") + "; exec \"$@\"";
  Strings launcher = mpirun(2);
  launcher.insert(launcher.end(), {"sh", "-c", peer, "sh"});
  test::Program program(pretrain("run"), root() / "process", 0, launcher);
  const Clock::time_point start = Clock::now();
  std::string process;
  while (process.empty() && Clock::now() - start < kSoon) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ifstream file(at("waits"));
    std::getline(file, process);
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));  // until it is past its first instructions
  ::kill(std::stoi(process), SIGTERM);
  EXPECT_NE(program.wait().code, 0);
  EXPECT_LT(Clock::now() - start, kSoon);
}

/// Schedulers suspend an entire job to run another one.
TEST_F(HangTest, ContinuesAfterAllRanksWereSuspended) {
  test::Program program(endless("run", 2, {}, kLimit), root() / "process", 0, script());
  wait_for_lines("run", 5);
  const pid_t ranks[]{process_of(0, "run"), process_of(1, "run")};
  for (const pid_t rank : ranks) ::kill(rank, SIGSTOP);
  const std::size_t before = metrics("run").size();
  std::this_thread::sleep_for(kLimit + std::chrono::seconds(2));
  for (const pid_t rank : ranks) ::kill(rank, SIGCONT);
  wait_for_lines("run", before + 20);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 85);
}

}  // namespace
}  // namespace mcpp
