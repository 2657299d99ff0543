// Traces of the real program: their contents compared with the metrics, and windows that end early.
#include <cmath>
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"
#include "tests/support/readers/chrome_trace.h"

namespace mcpp {
namespace {

class TraceEndToEndTest : public EndToEndOnRanks {
 protected:
  static Strings window(i64 start, i64 end) {
    return {str("--logging.profile_step_start=", start), str("--logging.profile_step_end=", end)};
  }
  Strings profiled(const std::string& save, Strings words, const Strings& more = {}) const {
    words.insert(words.end(), more.begin(), more.end());
    return pretrain(save, words);
  }
  nlohmann::json trace(const std::string& save, const std::string& name) const {
    return test::read_trace(folder_ / save / "traces" / (name + ".json"));
  }
  Strings traces(const std::string& save) const {
    Strings names;
    const Path folder = folder_ / save / "traces";
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        names.push_back(entry.path().filename().string());
    return names;
  }
  /// Returns the seconds of rank r according to the table of ranks for the window's iterations.
  static double logged_seconds(const nlohmann::json& ranks, std::size_t rank, const char* what, i64 iterations) {
    const double compute = 1e-3 * ranks["compute_ms"][rank].get<double>() * static_cast<double>(iterations),
                 bubble = ranks["bubble"][rank], exposed = ranks["exposed_communication"][rank];
    return ranks[what][rank].get<double>() * compute / (1 - bubble - exposed);
  }
  void expect_sums_match_log(const std::string& save, const nlohmann::json& file, std::size_t ranks) const {
    const std::vector<nlohmann::json> events = test::complete_events(file);
    test::expect_nested(events);
    nlohmann::json line;
    for (const nlohmann::json& record : records(save, "ranks"))
      if (record["iteration"] == 8) line = record;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const int process = static_cast<int>(rank);
      const nlohmann::json& figures = file["otherData"]["ranks"][rank];
      const double bubble = test::seconds_of(events, process, "bubble"),
                   exposed = test::seconds_of(events, process, "communication");
      EXPECT_NEAR(bubble, figures["bubble_seconds"], 1e-5) << rank;
      EXPECT_NEAR(exposed, figures["exposed_communication_seconds"], 1e-5) << rank;
      EXPECT_NEAR(bubble, logged_seconds(line, rank, "bubble", 4), 1e-5) << rank;
      EXPECT_NEAR(exposed, logged_seconds(line, rank, "exposed_communication", 4), 1e-5) << rank;
    }
  }
};

TEST_F(TraceEndToEndTest, SumsMatchLog) {
  const std::vector<std::pair<int, Strings>> layouts{
      {2, {"--parallel.pipeline_model_parallel_size=2"}},
      {4, {"--parallel.pipeline_model_parallel_size=2", "--parallel.zero_stage=1"}}};
  for (const auto& [ranks, layout] : layouts) {
    const std::string save = str("run", ranks);
    Strings more = layout;
    more.insert(more.end(),
                {"--logging.log_interval=4", "--training.micro_batch_size=1", "--training.eval_interval=0"});
    const Outcome outcome = run_on(ranks, profiled(save, window(4, 8), more));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_CONTAINS(outcome.out, "the trace of iterations 5 to 8 is in ");
    const nlohmann::json file = trace(save, "trace_iter_0000005_0000008");
    expect_sums_match_log(save, file, static_cast<std::size_t>(ranks));
    EXPECT_EQ(file["otherData"]["first_iteration"], 5);
  }
}

TEST_F(TraceEndToEndTest, RecordsOnlySelectedRanks) {
  const Outcome outcome = run_on(2, profiled("run", window(0, 2), {"--logging.profile_ranks=[1]"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json file = trace("run", "trace_iter_0000001_0000002");
  for (const nlohmann::json& event : test::complete_events(file)) EXPECT_EQ(event["pid"], 1);
  EXPECT_EQ(file["otherData"]["ranks"].size(), 2u);
  const Outcome refused = run_on(2, profiled("other", window(0, 2), {"--logging.profile_ranks=[0,2]"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "logging.profile_ranks: rank 2 does not exist; the ranks are 0 to 1");
}

TEST_F(TraceEndToEndTest, TracingDoesNotChangeTraining) {
  train("plain");
  run_ok(profiled("traced", window(2, 9)));
  expect_same_checkpoint("plain", "traced");
  EXPECT_EQ(losses("plain", 12), losses("traced", 12));
  const std::vector<nlohmann::json> events = test::complete_events(trace("traced", "trace_iter_0000003_0000009"));
  std::map<std::string, int> count;
  for (const nlohmann::json& event : events) ++count[event["name"]];
  EXPECT_EQ(count["train-step"], 7);
  EXPECT_EQ(count["batch-generator"], 7);
  // 2 microbatches per step, and one evaluation of 2 batches after iteration 5
  EXPECT_EQ(count["forward-compute"], 14 + 4);
  EXPECT_EQ(count["save-checkpoint"], 2);
  EXPECT_EQ(count["evaluate"], 1);
}

TEST_F(TraceEndToEndTest, WritesPartialWindowWhenRunEndsOrIsStopped) {
  run_ok(profiled("end", window(10, 100)));
  EXPECT_EQ(traces("end"), Strings{"trace_iter_0000011_0000012.json"});
  run_ok(profiled("beyond", window(50, 100)));
  EXPECT_EQ(traces("beyond"), Strings{});
  test::Program program(profiled("signal", window(2, 100000), {"--training.train_iters=100000"}), root() / "signal");
  wait_for_lines("signal", 4);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait().code, 85);
  ASSERT_EQ(traces("signal").size(), 1u);
  test::expect_nested(test::complete_events(test::read_trace(folder_ / "signal" / "traces" / traces("signal")[0])));
}

TEST_F(TraceEndToEndTest, WritesRestOfWindowAfterKill) {
  const Outcome killed =
      run(profiled("run", window(2, 9), {"--fault_injection.kind=kill", "--fault_injection.iteration=7"}));
  EXPECT_EQ(killed.code, -SIGKILL);
  EXPECT_EQ(traces("run"), Strings{});
  run_ok(profiled("run", window(2, 9)));
  EXPECT_EQ(traces("run"), Strings{"trace_iter_0000005_0000009.json"});
}

TEST_F(TraceEndToEndTest, RejectsBadKeysAndFolders) {
  const Outcome keys = run(profiled("run", window(9, 2)));
  EXPECT_EQ(keys.code, 2);
  EXPECT_CONTAINS(keys.err, "--logging.profile_step_start=9: 9 must be below profile_step_end 2");
  const Outcome missing =
      run({"pretrain", (root() / "run.toml").string(), "--checkpoint.save=", "--logging.profile_step_end=2"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_CONTAINS(missing.err, "logging.profile_dir: is missing");
  write_file_atomic(folder_ / "file", "");
  const Outcome file = run(profiled("run", window(1, 2), {"--logging.profile_dir=" + at("file")}));
  EXPECT_EQ(file.code, 2);
  EXPECT_CONTAINS(file.err, "logging.profile_dir: " + at("file") + " is a file");
}

TEST_F(TraceEndToEndTest, BenchStepWritesTrace) {
  const Strings bench{"bench",
                      "step",
                      (root() / "run.toml").string(),
                      "--repeats=1",
                      "--warmup=1",
                      "--checkpoint.save_interval=0",
                      "--trace=" + at("step.json")};
  run_ok(bench);
  const nlohmann::json file = test::read_trace(folder_ / "step.json");
  const std::vector<nlohmann::json> events = test::complete_events(file);
  test::expect_nested(events);
  EXPECT_TRUE(std::ranges::any_of(events, [](const auto& event) { return event["name"] == "forward-compute"; }));
  const Outcome refused = run(
      {"bench", "gemm", (root() / "run.toml").string(), "--checkpoint.save_interval=0", "--trace=" + at("step.json")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "--trace: applies only to bench step");
}

/// The other ranks wait for the slow one, which therefore waits least.
TEST_F(TraceEndToEndTest, NamesSlowRank) {
  const Outcome outcome = run_on(
      2, pretrain("run", {"--fault_injection.kind=slow", "--fault_injection.rank=1", "--fault_injection.iterations=0",
                          "--fault_injection.seconds=0.3", "--logging.log_interval=3", "--training.eval_interval=0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "warning: rank 1 computes ");
  EXPECT_EQ(outcome.err.find("rank 0 computes"), std::string::npos) << outcome.err;
  const nlohmann::json ranks = records("run", "ranks").back();
  EXPECT_GE(ranks["compute_ms"][1], 300.0);
  EXPECT_GE(ranks["exposed_communication"][0], 0.5);
}

TEST_F(TraceEndToEndTest, SavesAndStopsForSlowRank) {
  const Strings slow = {"--fault_injection.kind=slow",      "--fault_injection.rank=1",
                        "--fault_injection.iterations=0",   "--fault_injection.seconds=0.3",
                        "--logging.log_interval=3",         "--training.eval_interval=0",
                        "--training.straggler_policy=stop", "--checkpoint.save_interval=0"};
  const Outcome outcome = run_on(2, pretrain("run", slow));
  EXPECT_EQ(outcome.code, 75) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "rank 1 on host ");
  EXPECT_CONTAINS(outcome.err, " is slow (training.straggler_policy): saving and stopping");
  EXPECT_CONTAINS(outcome.out, "saved ");
  EXPECT_EQ(outcome.out.find("ended at iteration"), std::string::npos) << outcome.out;
  const Outcome resumed = run_on(2, pretrain("run", {"--training.eval_interval=0"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_CONTAINS(resumed.out, "resuming from ");
}

TEST_F(TraceEndToEndTest, LogsTimers) {
  const std::string two = run_ok(pretrain("two", {"--logging.timing_log_level=2"}));
  for (const char* name : {"forward-backward", "optimizer", "batch-generator", "forward-compute", "backward-compute"})
    EXPECT_CONTAINS(two, str("\n    ", name, " ..."));
  const nlohmann::json timers = metrics("two")[0].at("timers_ms");
  EXPECT_LE(timers["forward-compute"][0], timers["forward-backward"][0]);
  const std::string record =
      run_ok(pretrain("one", {"--logging.timing_log_level=1", "--logging.timing_log_option=max"}));
  EXPECT_CONTAINS(record, "max time across ranks (ms):\n");
  EXPECT_EQ(record.find("forward-compute"), std::string::npos);
  EXPECT_EQ(run_ok(pretrain("none")).find("time across ranks"), std::string::npos);
}

}  // namespace
}  // namespace mcpp
