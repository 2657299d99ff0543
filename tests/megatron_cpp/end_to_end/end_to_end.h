// Fixture for tests of the real program: a small text with tokenizer and token files, a configuration that trains
// within seconds, and helpers that run commands and inspect their output files.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/strings.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/program.h"

namespace mcpp {

class EndToEnd : public testing::Test {
 protected:
  using Strings = std::vector<std::string>;
  using Outcome = test::Outcome;

  static void SetUpTestSuite() {
    std::filesystem::create_directories(root());
    const std::string text = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
    write_file_atomic(root() / "train.txt", text.substr(0, 60'000));
    write_file_atomic(root() / "held_out.txt", text.substr(60'000, 3'000));
    make_tokenizer(root() / "tokenizer.model", 400);
    const Outcome outcome =
        run({"preprocess", str("--input=", (root() / "train.txt").string()),
             str("--output_prefix=", root().string(), "/train"),
             str("--tokenizer_model=", (root() / "tokenizer.model").string()), "--text_document=paragraph"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    write_file_atomic(root() / "run.toml", configuration());
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(root()); }

  void SetUp() override { std::filesystem::create_directories(folder_); }

  /// Returns the folder shared by the tests of a suite, which must not change it.
  static Path root() { return Path(testing::TempDir()) / str("mcpp_end_to_end_", ::getpid()); }
  static std::string dataset() { return (root() / "train_text_document").string(); }

  static std::string configuration() {
    const std::string place = "@folder@";
    std::string text = read_text_file(test::source_folder() / "tests/support/small_training.toml");
    for (std::size_t at = 0; (at = text.find(place)) != std::string::npos;)
      text.replace(at, place.size(), root().string());
    return text;
  }

  static void make_tokenizer(const Path& path, i64 vocab_size) {
    const Outcome outcome = run({"tokenizer", "train", str("--input=", (root() / "train.txt").string()),
                                 str("--output=", path.string()), str("--vocab_size=", vocab_size)});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }

  static Outcome run(const Strings& args, i64 file_limit = 0) {
    return test::Program(args, root() / "process", file_limit).wait();
  }
  /// Runs a command that must succeed. Returns its standard output.
  static std::string run_ok(const Strings& args) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }

  /// Returns the launcher words that start the program on several ranks. Leak detection of the address sanitizer is off
  /// because it reports leaks of Open MPI; tests of one process enable it.
  static Strings mpirun(int ranks) {
    return {
        "env", "ASAN_OPTIONS=detect_leaks=0", "mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none",
        "-n",  std::to_string(ranks)};
  }
  static Outcome run_on(int ranks, const Strings& args) {
    return test::Program(args, root() / "process", 0, mpirun(ranks)).wait();
  }

  /// Returns the arguments of a run that saves in `save`, a name inside the folder of this test.
  Strings pretrain(const std::string& save, const Strings& more = {}) const {
    Strings args{"pretrain", (root() / "run.toml").string(), str("--checkpoint.save=", at(save))};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  /// Returns the arguments for a precision. fp16 starts with a scale at which no step overflows; fp8 is combined with
  /// bf16.
  static Strings in_precision(const std::string& name) {
    if (name == "fp8") return {"--training.precision=bf16", "--training.fp8=hybrid"};
    Strings words{str("--training.precision=", name)};
    if (name == "fp16") words.push_back("--optimizer.initial_loss_scale=65536");
    return words;
  }
  static Strings joined(Strings words, const Strings& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Strings plus(Strings words, const std::string& one_more) {
    words.push_back(one_more);
    return words;
  }
  void train(const std::string& save, const Strings& more = {}) const { run_ok(pretrain(save, more)); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  /// Expects that all tensors and the progress of the runs are bitwise identical.
  void expect_same_checkpoint(const std::string& a, const std::string& b) const {
    const std::string text = run_ok({"checkpoint", "diff", at(a), at(b)});
    EXPECT_CONTAINS(text, " tensors compared, 0 differ");
    for (const char* part : {"only in", "iteration", "samples", "tokens:", "steps", "shape", "type"}) {
      EXPECT_EQ(text.find(part), std::string::npos) << text;
    }
  }

  /// Returns all lines of the metrics for which `wanted` is true.
  std::vector<nlohmann::json> records(const std::string& save,
                                      const std::function<bool(const nlohmann::json&)>& wanted) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / save / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json object = nlohmann::json::parse(line);
      if (wanted(object)) lines.push_back(object);
    }
    return lines;
  }
  std::vector<nlohmann::json> records(const std::string& save, const std::string& type) const {
    return records(save, [&](const nlohmann::json& line) { return line["type"] == type; });
  }
  /// Returns the lines with a loss, of steps and of evaluations.
  std::vector<nlohmann::json> metrics(const std::string& save) const {
    return records(save, [](const nlohmann::json& line) { return line.contains("lm_loss"); });
  }
  /// Returns the losses by iteration. Every iteration from 1 to `last` must occur once, in order.
  std::vector<double> losses(const std::string& save, i64 last) const {
    std::vector<double> result;
    for (const nlohmann::json& line : metrics(save)) {
      if (line["type"] != "train") continue;
      EXPECT_EQ(line["iteration"], result.size() + 1);
      result.push_back(line["lm_loss"].is_number() ? line["lm_loss"].get<double>() : std::nan(""));
    }
    EXPECT_EQ(result.size(), static_cast<std::size_t>(last));
    return result;
  }

  /// Waits until the metrics of a running training have `lines` lines with a loss.
  void wait_for_lines(const std::string& save, std::size_t lines) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    std::size_t found = 0;
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the run makes no progress";
      std::ifstream file(folder_ / save / "metrics.jsonl");
      found = 0;
      for (std::string line; std::getline(file, line);)
        found += line.ends_with("}") && line.find("\"lm_loss\"") != line.npos;
    } while (found < lines);
  }

  /// Returns temporary files, which a failed command should have removed.
  static Strings leftovers(const Path& folder) {
    Strings found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.find("tmp") != std::string::npos || name.find("probe") != std::string::npos) found.push_back(name);
    }
    return found;
  }

  const Path folder_ = root() / testing::UnitTest::GetInstance()->current_test_info()->name();
};

}  // namespace mcpp
