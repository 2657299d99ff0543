// Ranks that stop or die: the real program under mpirun ends for all, in time, with the exit code that asks for another
// start, and says who did not come.
#include <signal.h>

#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;

class Hang : public EndToEndOnRanks {
 protected:
  /// A training for ever on so many ranks, by the script that users start it with.
  Words endless(const std::string& save, int ranks, const Words& layout, std::chrono::duration<double> limit) const {
    Words args =
        pretrain(save, {"-n", std::to_string(ranks), "--training.train_iters=200000", "--training.eval_interval=0",
                        "--training.eval_iters=0", "--checkpoint.save_interval=0", "--training.micro_batch_size=1",
                        // For steps alone: a busy machine may take its time to start.
                        str("--parallel.step_timeout_minutes=", limit.count() / 60)});
    args.insert(args.end(), layout.begin(), layout.end());
    return args;
  }
  struct End {
    Outcome outcome;
    std::chrono::duration<double> after;
  };
  /// What becomes of a run when this signal hits one rank of it.
  End strike(int ranks, const Words& layout, int victim, int signal,
             std::chrono::duration<double> limit = kLimit) const {
    test::Program program(endless("run", ranks, layout, limit), root() / "process", 0, script());
    wait_for_lines("run", 5);
    ::kill(process_of(victim, "run"), signal);
    const Clock::time_point start = Clock::now();
    Outcome outcome = program.wait();
    return {.outcome = std::move(outcome), .after = Clock::now() - start};
  }
  void expect_hang_is_found(int ranks, const Words& layout, int victim, const std::string& operation) const {
    const auto [outcome, after] = strike(ranks, layout, victim, SIGSTOP);
    EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "megatron_cpp: error: hang: waits since");
    EXPECT_CONTAINS(outcome.err, operation);
    EXPECT_CONTAINS(outcome.err, str("rank ", victim, " does not answer"));
    EXPECT_CONTAINS(outcome.err, str("did not come because it does not run: rank ", victim, "\n"));
    EXPECT_LT(after, kSoon) << "a few seconds on an idle machine";
  }

  static constexpr std::chrono::duration<double> kLimit{3};
  /// Well below the ten minutes after which ranks that wait end the run in any case.
  static constexpr std::chrono::seconds kSoon{120};
};

TEST_F(Hang, AStoppedTensorParallelRankEndsAll) {
  expect_hang_is_found(2, {"--parallel.tensor_model_parallel_size=2"}, 1, "in tp (ranks 0 1), iteration");
}

TEST_F(Hang, AStoppedDataParallelRankEndsAll) {
  expect_hang_is_found(2, {"--parallel.zero_stage=3"}, 0, "in dp_shard (ranks 0 1), iteration");
}

TEST_F(Hang, AStoppedPipelineStageEndsAll) {
  expect_hang_is_found(4, {"--parallel.pipeline_model_parallel_size=2", "--parallel.tensor_model_parallel_size=2"}, 3,
                       " in pp");
}

TEST_F(Hang, AKilledRankEndsAllAtOnce) {
  const auto [outcome, after] = strike(2, {}, 1, SIGKILL, std::chrono::minutes(10));
  EXPECT_EQ(outcome.code, 75) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err.find("hang"), std::string::npos) << outcome.err;
  EXPECT_LT(after, kSoon) << "two seconds on an idle machine";
}

/// Where not even MPI works yet nothing else would notice.
TEST_F(Hang, ARankThatDoesNotComeToMpiEndsAll) {
  for (const char* end : {"exec sleep 1000", "kill -STOP $$", "exit 0"}) {
    const std::string peer = str("if [ $OMPI_COMM_WORLD_RANK = 1 ]; then ", end, "; fi; exec \"$@\"");
    Words launcher = mpirun(2);
    launcher.insert(launcher.begin() + 1, "MEGATRON_CPP_START_TIMEOUT_MINUTES=0.05");
    launcher.insert(launcher.end(), {"sh", "-c", peer, "sh"});
    const Clock::time_point start = Clock::now();
    const Outcome outcome = test::Program(pretrain("run"), root() / "process", 0, launcher).wait();
    EXPECT_EQ(outcome.code, 75) << end << outcome.out << outcome.err;
    EXPECT_CONTAINS(outcome.err, "[rank 0] megatron_cpp: error: MPI_Init waits since 3.0s for the other ranks");
    EXPECT_LT(Clock::now() - start, kSoon) << end;
  }
}

TEST_F(Hang, ARankThatWaitsForMpiIsNotDeaf) {
  const std::string peer = "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 1000; fi; trap '' TERM USR1; echo $$ >" +
                           at("waits") + "; exec \"$@\"";
  Words launcher = mpirun(2);
  launcher.insert(launcher.end(), {"sh", "-c", peer, "sh"});
  test::Program program(pretrain("run"), root() / "process", 0, launcher);
  const Clock::time_point start = Clock::now();
  std::string process;
  while (process.empty() && Clock::now() - start < kSoon) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::ifstream file(at("waits"));
    std::getline(file, process);
  }
  std::this_thread::sleep_for(std::chrono::seconds(2));  // then it is past its first lines
  ::kill(std::stoi(process), SIGTERM);
  EXPECT_NE(program.wait().code, 0);
  EXPECT_LT(Clock::now() - start, kSoon);
}

/// What a scheduler does to a job that makes room for another.
TEST_F(Hang, ARunThatIsSuspendedAsAWholeGoesOn) {
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
