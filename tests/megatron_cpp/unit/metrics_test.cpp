#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/monitor/console_sink.h"
#include "megatron_cpp/monitor/jsonl_sink.h"
#include "megatron_cpp/monitor/training_logger.h"

namespace mcpp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

IterationStats stats() {
  IterationStats s;
  s.iteration = 12;
  s.train_iters = 100;
  s.consumed_samples = 6144;
  s.elapsed_ms = 2000;
  s.learning_rate = 1.5e-4;
  s.global_batch_size = 512;
  s.lm_loss = 4.5;
  s.grad_norm = 1.25;
  return s;
}

/// Returns the line without its time stamp.
std::string line_of(const IterationStats& s) {
  const std::string line = iteration_line(s, std::chrono::system_clock::now());
  return line.substr(line.find(']') + 1);
}

Path fresh_file(const std::string& name) {
  const Path path = Path(testing::TempDir()) / "metrics_test" / name;
  std::filesystem::remove(path);
  std::filesystem::remove(path.string() + ".old");
  return path;
}

std::vector<i64> iterations_in(const Path& path) {
  std::vector<i64> found;
  for (const std::string& line : split(read_text_file(path), '\n')) {
    if (!line.empty()) found.push_back(nlohmann::json::parse(line)["iteration"].get<i64>());
  }
  return found;
}

void write_iterations(const Path& path, i64 resumed, i64 last) {
  const Log log;
  JsonlSink sink(path, /*writes_every_iteration=*/false, log);
  ResumePoint at{.iteration = resumed};
  sink.begin(at);
  for (i64 i = resumed + 1; i <= last; ++i) {
    IterationStats s = stats();
    s.iteration = i;
    sink.write_line(s);
  }
}

TEST(MetricsTest, ComputesRatesOfIteration) {
  IterationStats s = stats();
  set_rates(s, 1e6, 4e15, 2000, 2);
  EXPECT_DOUBLE_EQ(s.tokens_per_second, 5e5);
  EXPECT_DOUBLE_EQ(s.tflops, 1000);
  EXPECT_DOUBLE_EQ(s.mfu.value(), 0.5);
  EXPECT_DOUBLE_EQ(s.eta_seconds, 176);
  s.mfu.reset();
  set_rates(s, 1e6, 4e15, 0);
  EXPECT_FALSE(s.mfu);
}

TEST(MetricsTest, IterationLineMatchesMegatron) {
  IterationStats s = stats();
  set_rates(s, 1e6, 4e15, 0);
  EXPECT_EQ(
      line_of(s),
      " iteration       12/     100 | consumed samples:         6144 | elapsed time per iteration (ms): 2000.0 | "
      "throughput per GPU (TFLOP/s/GPU): 2000.0 | learning rate: 1.500000E-04 | global batch size:   512 | lm loss: "
      "4.500000E+00 | loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan "
      "iterations:   0 | tokens/s: 500000 | ETA: 2m56s |");
  s.mfu = 0.4567;
  s.lm_loss = kNan;
  s.nan_iterations = 3;
  EXPECT_NE(line_of(s).find("| lm loss: nan |"), std::string::npos);
  EXPECT_NE(line_of(s).find("| number of nan iterations:   3 | tokens/s: 500000 | MFU: 45.7% | ETA"),
            std::string::npos);
}

TEST(MetricsTest, TimeStampHasMicroseconds) {
  const auto time = std::chrono::system_clock::time_point(std::chrono::microseconds(1700000000000042));
  const std::string stamp = iteration_line(stats(), time).substr(0, 30);
  EXPECT_TRUE(stamp.starts_with(" [2023-11-1")) << stamp;
  EXPECT_TRUE(stamp.ends_with(":20.000042] ")) << stamp;
}

TEST(MetricsTest, FormatsProgressAndValidationLines) {
  IterationStats s = stats();
  set_rates(s, 24600, 1, 0);
  EXPECT_EQ(progress_line(s), "iteration 12/100 | loss 4.500 | 12.3K tokens/s | ETA 2m56s");
  const std::vector<std::string> lines =
      split(validation_lines({.iteration = 12, .split = "validation", .lm_loss = 2, .tokens = 1}), '\n');
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], " validation loss at iteration 12 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ");
  EXPECT_EQ(lines[0], std::string(lines[1].size(), '-'));
  EXPECT_DOUBLE_EQ((ValidationStats{.split = "test", .lm_loss = 1000}.perplexity()), std::exp(20.0));
  EXPECT_TRUE(std::isnan(ValidationStats{.split = "test", .lm_loss = kNan}.perplexity()));
}

TEST(JsonlSinkTest, WritesOneObjectPerLineWithNullForNan) {
  const Path path = fresh_file("objects.jsonl");
  const Log log;
  JsonlSink sink(path, /*writes_every_iteration=*/false, log);
  ResumePoint start;
  sink.begin(start);
  IterationStats s = stats();
  s.lm_loss = kNan;
  s.learning_rate = 1.0 / 3;
  sink.write_line(s);
  sink.write_evaluation({.iteration = 12, .split = "validation", .lm_loss = 2, .tokens = 7});
  const std::vector<std::string> lines = split(read_text_file(path), '\n');  // flushed before the sink is destroyed
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_TRUE(lines[0].starts_with("{\"type\":\"train\",\"iteration\":12,\"consumed_samples\":6144,")) << lines[0];
  const nlohmann::json train = nlohmann::json::parse(lines[0]);
  EXPECT_TRUE(train["lm_loss"].is_null());
  EXPECT_EQ(train["learning_rate"].get<double>(), 1.0 / 3);
  EXPECT_FALSE(train.contains("mfu"));
  const std::string time = train["time"].get<std::string>();
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ASSERT_EQ(*::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%S", &parts), '.') << time;
  EXPECT_NEAR(static_cast<double>(::timegm(&parts)), static_cast<double>(now), 100) << time;
  EXPECT_TRUE(time.ends_with("Z") && time.size() == 24) << time;
  EXPECT_TRUE(nlohmann::json::parse(lines[1]).contains("time"));
  EXPECT_EQ(nlohmann::json::parse(lines[1])["type"], "validation");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["tokens"], 7);
}

TEST(JsonlSinkTest, DropsLaterIterationsAndTruncatedLinesOnResume) {
  const Path path = fresh_file("resumed.jsonl");
  write_iterations(path, 0, 5);
  write_file_atomic(path, read_text_file(path) + "{\"type\": \"tra");
  write_iterations(path, 3, 6);
  EXPECT_EQ(iterations_in(path), (std::vector<i64>{1, 2, 3, 4, 5, 6}));
  write_iterations(path, 6, 7);
  EXPECT_EQ(iterations_in(path), (std::vector<i64>{1, 2, 3, 4, 5, 6, 7}));
}

TEST(JsonlSinkTest, NewRunKeepsOldFile) {
  const Path path = fresh_file("kept.jsonl");
  write_iterations(path, 0, 2);
  write_iterations(path, 0, 1);
  EXPECT_EQ(iterations_in(path), (std::vector<i64>{1}));
  EXPECT_EQ(iterations_in(path.string() + ".old"), (std::vector<i64>{1, 2}));
}

TEST(JsonlSinkTest, WarnsOnceWhenDiskIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const Log log;
  testing::internal::CaptureStderr();
  {
    JsonlSink sink("/dev/full", /*writes_every_iteration=*/false, log);
    ResumePoint start;
    sink.begin(start);
    sink.write_line(stats());
    sink.write_line(stats());
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: /dev/full: metrics are being lost: No space left on device\n");
}

TEST(JsonlSinkTest, WritesNothingBeforeBeginAndRejectsBadPath) {
  const Log log;
  const Path path = fresh_file("not_begun.jsonl");
  JsonlSink sink(path, /*writes_every_iteration=*/false, log);
  sink.write_line(stats());
  EXPECT_FALSE(std::filesystem::exists(path));
  JsonlSink folder(Path(testing::TempDir()), /*writes_every_iteration=*/false, log);
  ResumePoint start;
  EXPECT_THROW(folder.begin(start), Error);
}

/// Only evaluations at the iteration of the checkpoint count, since later ones are dropped.
TEST(JsonlSinkTest, NamesEvaluationsAtResumedIteration) {
  const Path path = fresh_file("evaluations.jsonl");
  const Log log;
  ResumePoint start, at{.iteration = 4};
  {
    JsonlSink sink(path, /*writes_every_iteration=*/false, log);
    sink.begin(start);
    sink.write_evaluation({.iteration = 2, .split = "validation-books"});
    sink.write_evaluation({.iteration = 4, .split = "validation"});
    sink.write_evaluation({.iteration = 6, .split = "test"});
  }
  JsonlSink(path, /*writes_every_iteration=*/false, log).begin(at);
  EXPECT_EQ(at.evaluations, (std::set<std::string>{"validation"}));
  EXPECT_EQ(iterations_in(path), (std::vector<i64>{2, 4}));
}

/// Lists values by rank, for the memory classes and offload tiers that some rank uses.
TEST(JsonlSinkTest, WritesMemoryOfRanks) {
  const Path path = fresh_file("ranks.jsonl");
  const auto index_of = [](MemoryClass c) { return static_cast<std::size_t>(c); };
  RankStats one{.peak_memory_bytes = 70}, other{.peak_memory_bytes = 90};
  one.peak_by_class[index_of(MemoryClass::Params)] = 60;
  one.offloaded[index_of(MemoryClass::Params)].in_host = 5;
  other.offloaded[index_of(MemoryClass::Params)].in_host = 6;
  other.offloaded[index_of(MemoryClass::OptimizerState)] = {.in_host = 1, .on_disk = 8};
  const Log log;
  JsonlSink sink(path, /*writes_every_iteration=*/false, log);
  ResumePoint start;
  sink.begin(start);
  sink.write_ranks({.iteration = 3, .ranks = {one, other}});
  nlohmann::json line = nlohmann::json::parse(read_text_file(path));
  EXPECT_EQ(line["iteration"], 3);
  EXPECT_EQ(line["peak_memory_bytes"], (nlohmann::json{70, 90}));
  EXPECT_EQ(line["in_host_bytes"], (nlohmann::json{5, 7}));
  EXPECT_EQ(line["on_disk_bytes"], (nlohmann::json{0, 8}));
  EXPECT_EQ(line["peak_by_class"], (nlohmann::json{{"parameters", {60, 0}}, {"optimizer state", {0, 0}}}));
  EXPECT_EQ(line["in_host_by_class"], (nlohmann::json{{"parameters", {5, 6}}, {"optimizer state", {0, 1}}}));
  EXPECT_EQ(line["on_disk_by_class"], (nlohmann::json{{"optimizer state", {0, 8}}}));
}

}  // namespace
}  // namespace mcpp
