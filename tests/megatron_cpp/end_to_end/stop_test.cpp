// Stopping a run: it stops at the next microbatch on all ranks, and the next start runs missed evaluations.
#include <signal.h>

#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;

class StopTest : public EndToEndOnRanks {
 protected:
  /// Arguments for steps of minutes with microbatches of milliseconds.
  static Strings long_steps() {
    return {"--model.hidden_size=128",      "--training.micro_batch_size=4", "--training.global_batch_size=16000",
            "--training.train_iters=5",     "--training.eval_interval=0",    "--training.eval_iters=0",
            "--checkpoint.save_interval=1", "--data.prefetch_batches=8"};
  }
  /// CPU time limit, which does not depend on the load of the host; far below the time of such a step.
  static constexpr double kFewSeconds = 20;
  static constexpr std::chrono::seconds kPatience{120};  ///< timeout for events that happen immediately or never

  /// Expects that the step was aborted. `before`: CPU seconds at the time of the signal.
  void expect_aborted(test::Program& program, double before) const {
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 85) << outcome.out << outcome.err;
    EXPECT_GT(before, 0);
    EXPECT_LT(outcome.cpu_seconds - before, kFewSeconds);
    EXPECT_CONTAINS(outcome.out + outcome.err, " received: saving after this microbatch");
    EXPECT_CONTAINS(outcome.out, "iteration 1 is canceled and has no effect");
    EXPECT_EQ(outcome.out.find("saving and stopping"), std::string::npos) << "a signal is reported once";
    EXPECT_CONTAINS(outcome.out, "saved ");
    EXPECT_CONTAINS(outcome.out, "; start the same command again to continue\n");
    EXPECT_EQ(metrics("run").size(), 0u);
  }

  /// Waits until the output, <name>.out or <name>.err, contains `text`.
  static void wait_for_output(const std::string& name, const std::string& text) {
    const auto deadline = Clock::now() + kPatience;
    std::string output;
    do {
      ASSERT_LT(Clock::now(), deadline) << text << ": is not in the output";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      output.clear();
      for (const char* extension : {".out", ".err"}) {
        std::ifstream file((root() / name).string() + extension);
        output.append(std::istreambuf_iterator<char>(file), {});
      }
    } while (output.find(text) == std::string::npos);
  }

  /// Returns the evaluations of a run in order: iteration, loss and kind.
  std::vector<std::tuple<i64, double, std::string>> evaluations(const std::string& save) const {
    std::vector<std::tuple<i64, double, std::string>> found;
    for (const nlohmann::json& line : metrics(save))
      if (line["type"] != "train") found.emplace_back(line["iteration"], line["lm_loss"], line["type"]);
    return found;
  }
};

TEST_F(StopTest, AbortsLongStepAtNextMicrobatch) {
  test::Program program(pretrain("run", long_steps()), root() / "stopped");
  wait_for_output("stopped", "parameters: ");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const double before = program.cpu_seconds();
  program.signal(SIGTERM);
  expect_aborted(program, before);
}

TEST_F(StopTest, AllRanksAbortLongStep) {
  const std::pair<const char*, Strings> layouts[]{
      {"dp", {"--parallel.zero_stage=1"}},
      {"tp", {"--parallel.tensor_model_parallel_size=2"}},
      {"pp", {"--parallel.pipeline_model_parallel_size=2"}},
  };
  for (const auto& [name, words] : layouts) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(at("run"));
    Strings args = pretrain("run", long_steps());
    args.insert(args.end(), words.begin(), words.end());
    test::Program program(args, root() / "stopped", 0, mpirun(2));
    wait_for_output("stopped", "parameters: ");
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const double before = program.cpu_seconds();
    ::kill(process_of(1, "run"), SIGTERM);
    expect_aborted(program, before);
  }
}

/// The launch scripts forward the first interrupt as a different signal. The following save hangs.
TEST_F(StopTest, SecondInterruptEndsAllRanksImmediately) {
  for (const std::string name : {"pretrain.sh", "launch.sh"}) {
    SCOPED_TRACE(name);
    Strings args = pretrain(name, long_steps());
    args.insert(args.end(), {"-n", "2", "--fault_injection.kind=hang", "--fault_injection.point=before_files",
                             "--fault_injection.iteration=0"});
    test::Program program(args, root() / "impatient", 0, script(name));
    wait_for_output("impatient", "parameters: ");
    std::this_thread::sleep_for(std::chrono::seconds(3));
    const Path rank = str("/proc/", process_of(1, name));
    program.signal(SIGINT);
    wait_for_output("impatient", ", before_files\n");
    program.signal(SIGINT);
    const Clock::time_point interrupt_time = Clock::now();
    const Outcome outcome = program.wait();
    EXPECT_NE(outcome.code, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.code, 85) << outcome.out << outcome.err;
    while (contains_string(rank / "cmdline", at(name)) && Clock::now() - interrupt_time < kPatience)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_LT(Clock::now() - interrupt_time, kPatience);
  }
}

TEST_F(StopTest, SecondInterruptEndsImmediately) {
  // A save that never ends stands for a slow disk.
  test::Program program(pretrain("run", {"--fault_injection.kind=hang", "--fault_injection.point=before_files",
                                         "--fault_injection.iteration=4"}),
                        root() / "impatient");
  wait_for_lines("run", 4);
  for (const int signal : {SIGINT, SIGTERM, SIGINT}) {
    program.signal(signal);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // two signals of the same kind must not merge into one
  }
  EXPECT_EQ(program.wait().code, 128 + SIGINT);
}

TEST_F(StopTest, RepeatsInterruptedEvaluation) {
  train("whole");
  const Strings endless{"--training.eval_iters=50000"};
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string save = str("signal_", signal);
    train(save, {"--training.exit_interval=4"});
    test::Program program(pretrain(save, endless), root() / "interrupted");
    wait_for_lines(save, 5);  // the line of iteration 5, which is followed by an evaluation
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

TEST_F(StopTest, RepeatsInterruptedFinalEvaluations) {
  train("whole");
  const Strings endless{"--training.eval_iters=50000"};
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
    const std::string output = run_ok(pretrain(save));
    EXPECT_CONTAINS(output, "all 12 iterations are done");
    EXPECT_CONTAINS(output, "test loss at iteration 12");
    EXPECT_EQ(evaluations(save), evaluations("whole"));
    EXPECT_EQ(run_ok(pretrain(save)).find(" loss at iteration"), std::string::npos)
        << "the evaluation must not be repeated";
    EXPECT_EQ(evaluations(save), evaluations("whole"));
  }
}

/// The checkpoint is saved before the evaluation of its iteration.
TEST_F(StopTest, RunsMissedEvaluationAfterSave) {
  const Strings often{"--training.eval_interval=4"};
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
