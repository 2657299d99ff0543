// `plan --from_run` with real runs: it reports their own layout, all sublayers of every layer, and the predicted and
// measured memory by class.
#include <gmock/gmock.h>

#include <regex>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class PlanFromRunTest : public EndToEndOnRanks {
 protected:
  Strings plan(const std::string& save, const Strings& more = {}) const {
    Strings args{"plan",
                 (root() / "run.toml").string(),
                 "--hardware=a100_80gb",
                 "--from_run=" + at(save),
                 "--checkpoint.save=" + at(save),
                 "--hardware_folder=" + (test::source_folder() / "configs/hardware").string()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  /// Returns the predicted and measured bytes of a row of the table.
  static std::pair<double, double> memory_row(const std::string& table, const std::string& name) {
    const std::regex row("\n  " + name + " +([0-9.]+) ([KMG]?i?B) +([0-9.]+) ([KMG]?i?B)");
    std::smatch found;
    if (!std::regex_search(table, found, row)) {
      ADD_FAILURE() << "no " << name << " in\n" << table;
      return {};
    }
    const auto bytes = [&](std::size_t at) {
      const std::string unit = found[at + 1];
      return std::stod(found[at]) * (unit == "KiB" ? 1024.0 : unit == "MiB" ? 1048576.0 : 1.0);
    };
    return {bytes(1), bytes(3)};
  }

  /// Returns the cells of a module's row in the table of module memory: predicted and measured bytes of parameters,
  /// gradients, optimizer state and activations.
  static std::vector<std::pair<double, double>> module_row(const std::string& table, const std::string& module) {
    const std::size_t begin = table.find("\n  " + module + " ", table.find("\nmemory of modules"));
    if (begin == std::string::npos) {
      ADD_FAILURE() << "no memory of " << module << " in\n" << table;
      return {};
    }
    const std::string row = table.substr(begin + 1, table.find('\n', begin + 1) - begin - 1);
    const std::regex cell("([0-9.]+) ([KMG]?i?B)");
    std::vector<double> bytes;
    for (std::sregex_iterator at(row.begin(), row.end(), cell), end; at != end; ++at) {
      const std::string unit = (*at)[2];
      bytes.push_back(std::stod((*at)[1]) * (unit == "KiB" ? 1024.0 : unit == "MiB" ? 1048576.0 : 1.0));
    }
    std::vector<std::pair<double, double>> cells;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) cells.emplace_back(bytes[i], bytes[i + 1]);
    return cells;
  }

  /// Returns measured divided by predicted time of a row: 0.939 for "-6.1 %", 17 for "17 times".
  static double times_predicted(const std::string& table, const std::string& name) {
    const std::regex row("\n  " + name + " +[0-9.]+ m?s +[0-9.]+ m?s +([-0-9.]+) (%|times)");
    std::smatch found;
    if (!std::regex_search(table, found, row)) {
      ADD_FAILURE() << "no " << name << " in\n" << table;
      return {};
    }
    return found[2] == "%" ? 1 + std::stod(found[1]) / 100 : std::stod(found[1]);
  }

  static bool reports_deviation(const std::string& table, const std::string& name) {
    return table.find("  " + name + " is more than 20 % off") != std::string::npos;
  }
};

TEST_F(PlanFromRunTest, ReportsLayoutModulesAndMemoryOfRun) {
  struct Case {
    const char* name;
    Strings layout;
    const char* log;
  };
  const Case cases[]{
      {"tp2", {"--parallel.tensor_model_parallel_size=2", "--parallel.sequence_parallel=true"}, "tp 2 sp, dp 1"},
      {"pp2", {"--parallel.pipeline_model_parallel_size=2"}, "pp 2 1f1b, dp 1"},
      {"cp2", {"--parallel.context_parallel_size=2"}, "cp 2 p2p, dp 1"},
      {"zero3", {"--parallel.zero_stage=3"}, "dp 2 zero 3"},
      {"offloaded",
       {"--parallel.zero_stage=1", "--optimizer.offload=host", "--training.offload_activations=host"},
       "optimizer state in host memory, activations in host memory"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Strings more = c.layout;
    more.insert(more.end(), {"--logging.profile_step_start=4", "--logging.profile_step_end=8"});
    const Outcome outcome = run_on(2, pretrain(c.name, more));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string table = run_ok(plan(c.name));
    EXPECT_CONTAINS(table, "2 ranks, ");
    EXPECT_CONTAINS(table, c.log);
    for (const char* module : {"embedding ", "decoder.layers.0.self_attention ", "decoder.layers.0.mlp ",
                               "decoder.layers.1.self_attention ", "decoder.layers.1.mlp ", "output_layer "})
      EXPECT_CONTAINS(table, module);
    // The host is not an A100, although a small step may happen to be equally fast. Deviations are reported.
    const double step = times_predicted(table, "step");
    EXPECT_EQ(reports_deviation(table, "step"), step < 0.8 || step > 1 / 0.8);
    EXPECT_CONTAINS(table, "2 x A100");  // The plan is for the number of ranks of the run.
    Strings classes{"parameters", "gradients", "activations"};
    classes.push_back(c.name == std::string("offloaded") ? "kept in host memory" : "optimizer state");
    for (const std::string& name : classes) {
      const auto [predicted, measured] = memory_row(table, name);
      EXPECT_NEAR(predicted / measured, 1, 0.01) << name;
    }
    for (const char* module : {"embedding", "decoder.layers.0", "decoder.layers.1", "output_layer"}) {
      const auto cells = module_row(table, module);
      ASSERT_EQ(cells.size(), 4) << module << " in\n" << table;
      for (std::size_t i = 0; i < cells.size(); ++i)  // padding of small tensors; losses with the logits
        EXPECT_NEAR(cells[i].first, cells[i].second, 0.01 * cells[i].second + 1200) << module << ", class " << i;
    }
  }
}

// The memory also matches if layers save only a part of their activations, or with experts.
TEST_F(PlanFromRunTest, ReportsMemoryOfModulesWithRecomputation) {
  const Strings window{"--logging.profile_step_start=4", "--logging.profile_step_end=6"};
  const std::pair<const char*, Strings> cases[]{{"full", {"--training.recompute_granularity=full"}},
                                                {"selective", {"--training.recompute_granularity=selective"}},
                                                {"bf16", {"--training.precision=bf16", "--parallel.zero_stage=1"}},
                                                {"parallel_residual", {"--model.use_parallel_residual=true"}}};
  for (const auto& [name, keys] : cases) {
    SCOPED_TRACE(name);
    Strings more = keys;
    more.insert(more.end(), window.begin(), window.end());
    train(name, more);
    const std::string table = run_ok(plan(name));
    for (const char* module : {"embedding", "decoder.layers.0", "decoder.layers.1", "output_layer"}) {
      const auto cells = module_row(table, module);
      ASSERT_EQ(cells.size(), 4) << module << " in\n" << table;
      for (std::size_t i = 0; i < cells.size(); ++i)
        EXPECT_NEAR(cells[i].first, cells[i].second, 0.01 * cells[i].second + 1200) << module << ", class " << i;
    }
  }
}

// A calibration from a run determines the layout of the next start, on the same number of ranks or fewer. The training
// continues unchanged.
TEST_F(PlanFromRunTest, ResumesWithEmittedLayout) {
  train_on(2, "whole", {"--parallel.pipeline_model_parallel_size=2"});
  train_on(2, "first", {"--parallel.pipeline_model_parallel_size=2", "--training.exit_interval=8"});
  const std::string hardware = at("found.toml"), next = at("next.toml");
  const std::string log = run_ok(plan("first", {"--tp=2", "--emit_hardware=" + hardware, "--emit=" + next}));
  EXPECT_CONTAINS(log, "the adjusted hardware was written to " + hardware);
  const std::vector<double> expected = losses("whole", 12);
  const auto expect_same_training = [&](const std::string& save) {
    const std::vector<double> found = losses(save, 12);
    for (std::size_t i = 8; i < 12; ++i)
      EXPECT_NEAR(found[i] / expected[i], 1, 1e-5) << save << ", iteration " << i + 1;
  };
  for (const char* copy : {"emitted", "fewer"})
    std::filesystem::copy(at("first"), at(copy), std::filesystem::copy_options::recursive);
  const Outcome emitted = run_on(2, {"pretrain", next, "--checkpoint.save=" + at("emitted")});
  ASSERT_EQ(emitted.code, 0) << emitted.err;
  EXPECT_CONTAINS(emitted.out, "tensor parallel       2");
  expect_same_training("emitted");
  const Outcome fewer =
      run(pretrain("fewer", {"--parallel.pipeline_model_parallel_size=2", "--plan", "--hardware=" + hardware}));
  ASSERT_EQ(fewer.code, 0) << fewer.err;
  EXPECT_CONTAINS(fewer.out, "planned for 1 x A100 SXM 80GB: tp 1, dp 1");
  expect_same_training("fewer");
}

// A run on hardware other than configured logs the deviations while it runs.
TEST_F(PlanFromRunTest, LogsDeviationsDuringTraining) {
  const std::string gap = "kernel_gap = ";
  std::string hardware = read_text_file(test::source_folder() / "configs/hardware/a100_80gb.toml");
  hardware.replace(hardware.find(gap), hardware.find('\n', hardware.find(gap)) - hardware.find(gap), gap + "1e6");
  write_file_atomic(at("slow.toml"), hardware);
  const Strings more{"--hardware=" + at("slow.toml"), "--logging.log_interval=2"};
  const Outcome alone = run(pretrain("alone", more));
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_CONTAINS(alone.out + alone.err, "compute is more than 20 % off: ");
  const Outcome two = run_on(2, pretrain("two", plus(more, "--parallel.pipeline_model_parallel_size=2")));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_CONTAINS(two.out + two.err, "compute of pipeline rank 1 is more than 20 % off: ");
}

}  // namespace
}  // namespace mcpp
