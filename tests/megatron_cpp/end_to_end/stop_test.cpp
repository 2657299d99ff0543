// Runs that are told to stop: they do at the next microbatch, on all ranks, and owe no evaluation.
#include <signal.h>

#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;

class Stop : public EndToEndOnRanks {
 protected:
  /// Steps of minutes, of microbatches of milliseconds.
  static Words long_steps() {
    return {"--model.hidden_size=128",      "--training.micro_batch_size=4", "--training.global_batch_size=16000",
            "--training.train_iters=5",     "--training.eval_interval=0",    "--training.eval_iters=0",
            "--checkpoint.save_interval=1", "--data.prefetch_batches=8"};
  }
  /// CPU time, which other programs of the machine do not lengthen; far below that of such a step.
  static constexpr double kFewSeconds = 20;
  static constexpr std::chrono::seconds kPatience{120};  ///< for what ends at once or never

  /// `before`: CPU seconds when it was told to stop.
  void expect_given_up(test::Program& program, double before) const {
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
    EXPECT_GT(before, 0);
    EXPECT_LT(outcome.cpu_seconds - before, kFewSeconds);
    EXPECT_CONTAINS(outcome.out + outcome.err, " received: saving after this microbatch");
    EXPECT_CONTAINS(outcome.out, "iteration 1 is cancelled and has no effect");
    EXPECT_CONTAINS(outcome.out, "received: saving and stopping");
    EXPECT_CONTAINS(outcome.out, "saved ");
    EXPECT_EQ(metrics("run").size(), 0u);
  }

  /// Waits until the output, <name>.out, has a text.
  static void wait_for_output(const std::string& name, const std::string& text) {
    const auto deadline = Clock::now() + kPatience;
    std::string said;
    do {
      ASSERT_LT(Clock::now(), deadline) << text << ": was not said";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ifstream file((root() / name).string() + ".out");
      said.assign(std::istreambuf_iterator<char>(file), {});
    } while (said.find(text) == std::string::npos);
  }

  /// The evaluations of a run in order, each with its iteration, loss and kind.
  std::vector<std::tuple<i64, double, std::string>> evaluations(const std::string& save) const {
    std::vector<std::tuple<i64, double, std::string>> found;
    for (const nlohmann::json& line : metrics(save))
      if (line["type"] != "train") found.emplace_back(line["iteration"], line["lm_loss"], line["type"]);
    return found;
  }
};

TEST_F(Stop, ALongStepIsGivenUpAtTheNextMicrobatch) {
  test::Program program(pretrain("run", long_steps()), root() / "stopped");
  wait_for_output("stopped", "parameters: ");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double before = program.cpu_seconds();
  program.signal(SIGTERM);
  expect_given_up(program, before);
}

TEST_F(Stop, ALongStepOnRanksIsGivenUpByAll) {
  const std::pair<const char*, Words> layouts[]{
      {"dp", {"--parallel.zero_stage=1"}},
      {"tp", {"--parallel.tensor_model_parallel_size=2"}},
      {"pp", {"--parallel.pipeline_model_parallel_size=2"}},
  };
  for (const auto& [name, words] : layouts) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(at("run"));
    Words args = pretrain("run", long_steps());
    args.insert(args.end(), words.begin(), words.end());
    test::Program program(args, root() / "stopped", 0, mpirun(2));
    wait_for_output("stopped", "parameters: ");
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const double before = program.cpu_seconds();
    ::kill(process_of(1, "run"), SIGTERM);
    expect_given_up(program, before);
  }
}

/// Through the scripts, which pass the first on as another signal. The save that it leads to never ends.
TEST_F(Stop, ASecondInterruptEndsAllRanksAtOnce) {
  for (const std::string name : {"pretrain.sh", "launch.sh"}) {
    SCOPED_TRACE(name);
    Words args = pretrain(name, long_steps());
    args.insert(args.end(), {"-n", "2", "--fault_injection.kind=hang", "--fault_injection.point=before_files",
                             "--fault_injection.iteration=0"});
    test::Program program(args, root() / "impatient", 0, script(name));
    wait_for_output("impatient", "parameters: ");
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const Path rank = str("/proc/", process_of(1, name));
    program.signal(SIGINT);
    wait_for_output("impatient", "received: saving and stopping");
    program.signal(SIGINT);
    const Clock::time_point told = Clock::now();
    const Outcome outcome = program.wait();
    EXPECT_NE(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.code, 85) << outcome.out << outcome.err;
    while (holds(rank / "cmdline", at(name)) && Clock::now() - told < kPatience)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_LT(Clock::now() - told, kPatience);
  }
}

TEST_F(Stop, ASecondInterruptEndsAtOnce) {
  // A disk that takes its time: a save that never ends.
  test::Program program(pretrain("run", {"--fault_injection.kind=hang", "--fault_injection.point=before_files",
                                         "--fault_injection.iteration=4"}),
                        root() / "impatient");
  wait_for_lines("run", 4);
  for (const int signal : {SIGINT, SIGTERM, SIGINT}) {
    program.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that two of a kind do not become one
  }
  EXPECT_EQ(program.wait().code, 128 + SIGINT);
}

TEST_F(Stop, AnEvaluationThatWasInterruptedIsMadeUpFor) {
  train("whole");
  const Words endless{"--training.eval_iters=50000"};
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string save = str("signal_", signal);
    train(save, {"--training.exit_interval=4"});
    test::Program program(pretrain(save, endless), root() / "interrupted");
    wait_for_lines(save, 5);  // of iteration 5, which an evaluation follows
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    program.signal(signal);
    EXPECT_EQ(program.wait().code, signal == SIGKILL ? -SIGKILL : 85);
    EXPECT_EQ(evaluations(save).size(), 0u);
    train(save);
    EXPECT_EQ(evaluations(save), evaluations("whole"));
    expect_same_checkpoint("whole", save);
    losses(save, 12);
  }
}

TEST_F(Stop, TheEvaluationsOfTheEndAreMadeUpFor) {
  train("whole");
  const Words endless{"--training.eval_iters=50000"};
  for (const int signal : {SIGUSR1, SIGKILL}) {
    const std::string save = str("signal_", signal);
    train(save, {"--training.exit_interval=11"});
    test::Program program(pretrain(save, endless), root() / "interrupted");
    wait_for_lines(save, 14);
    wait_for_output("interrupted", "saved " + at(save) + "/iter_0000012");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    program.signal(signal);
    EXPECT_EQ(program.wait().code, signal == SIGKILL ? -SIGKILL : 85);
    EXPECT_EQ(evaluations(save).size(), 2u);
    const std::string made_up = good(pretrain(save));
    EXPECT_CONTAINS(made_up, "all 12 iterations are done");
    EXPECT_CONTAINS(made_up, "test loss at iteration 12");
    EXPECT_EQ(evaluations(save), evaluations("whole"));
    EXPECT_EQ(good(pretrain(save)).find(" loss at iteration"), std::string::npos) << "once is enough";
    EXPECT_EQ(evaluations(save), evaluations("whole"));
  }
}

/// A checkpoint is there before the evaluation of its iteration.
TEST_F(Stop, AnEvaluationAfterASaveIsMadeUpForToo) {
  const Words often{"--training.eval_interval=4"};
  train("whole", often);
  test::Program program(pretrain("run", plus(often, "--training.eval_iters=50000")), root() / "interrupted");
  wait_for_output("interrupted", "saved " + at("run") + "/iter_0000004");
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait().code, -SIGKILL);
  train("run", often);
  EXPECT_EQ(evaluations("run"), evaluations("whole"));
}

}  // namespace
}  // namespace mcpp
