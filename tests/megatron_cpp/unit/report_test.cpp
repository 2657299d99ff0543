#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/monitor/jsonl_sink.h"
#include "megatron_cpp/report/page.h"
#include "megatron_cpp/report/run_history.h"

namespace mcpp {
namespace {

using Numbers = std::vector<double>;

RunHistory history_of(const std::vector<std::string>& lines) {
  RunHistory history;
  for (const std::string& line : lines) history.add_line(line);
  return history;
}

std::string step(i64 iteration, const std::string& loss) {
  return str(R"({"type":"train","iteration":)", iteration, R"(,"lm_loss":)", loss, "}");
}

Numbers losses(const NumberTable& table) {
  const auto column = table.column("lm_loss");
  return {column.begin(), column.end()};
}

ReportRun run_of(const RunHistory& history, const std::string& name = "a") {
  return {.name = name, .file = name, .history = history, .config = {}};
}

nlohmann::json data_of(const RunHistory& history) {
  return nlohmann::json::parse(page_data("title", {run_of(history)}))["runs"][0];
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(NumberTableTest, NewRowReplacesRowsOfSameAndLaterIterations) {
  NumberTable table;
  for (const double i : {1, 2, 3, 4}) table.add(i, std::vector<std::pair<std::string, double>>{{"a", 10 * i}});
  table.add(3, std::vector<std::pair<std::string, double>>{{"b", 5}});
  EXPECT_EQ(table.iterations(), (Numbers{1, 2, 3}));
  const auto a = table.column("a"), b = table.column("b");
  ASSERT_EQ(a.size(), 3u);
  ASSERT_EQ(b.size(), 3u);
  EXPECT_EQ(a[1], 20);
  EXPECT_TRUE(std::isnan(a[2]));
  EXPECT_TRUE(std::isnan(b[0]) && std::isnan(b[1]));
  EXPECT_EQ(b[2], 5);
  table.truncate_after(1);
  EXPECT_EQ(table.rows(), 1u);
  EXPECT_EQ(table.column("b").size(), 1u);
  EXPECT_TRUE(table.column("c").empty());
}

TEST(NumberTableTest, LimitsNumberOfColumns) {
  NumberTable table;
  for (i64 i = 1; i <= 1000; ++i) table.add(1, std::vector<std::pair<std::string, double>>{{str("column", i), 1}});
  EXPECT_EQ(table.columns().size(), NumberTable::kMaxColumns);
}

TEST(RunHistoryTest, LaterRecordsReplaceEarlierIterations) {
  const RunHistory history =
      history_of({step(1, "5"), step(2, "4"), R"({"type":"validation","iteration":2,"lm_loss":4.5})", step(3, "3"),
                  R"({"type":"event","iteration":3,"event":"skip","text":"gone"})",
                  R"({"type":"validation","iteration":3,"lm_loss":9})", step(2, "4.25"),
                  R"({"type":"validation","iteration":2,"lm_loss":4.75})", step(3, "3.5")});
  EXPECT_EQ(history.steps.iterations(), (Numbers{1, 2, 3}));
  EXPECT_EQ(losses(history.steps), (Numbers{5, 4.25, 3.5}));
  EXPECT_EQ(losses(history.evaluations.at("validation")), Numbers{4.75});
  EXPECT_TRUE(history.events.empty());
  EXPECT_EQ(history.unreadable_lines, 0u);
}

TEST(RunHistoryTest, StartDropsLaterIterations) {
  const RunHistory history =
      history_of({step(1, "5"), step(2, "4"), R"({"type":"sample","iteration":2,"prompt":"a","text":"b"})",
                  R"({"type":"run","iteration":1,"world_size":4,"config":"[model]\nseq_length = 8"})"});
  EXPECT_EQ(history.steps.iterations(), Numbers{1});
  EXPECT_TRUE(history.samples.empty());
  ASSERT_EQ(history.starts.size(), 1u);
  EXPECT_EQ(history.starts[0].world_size, 4);
}

TEST(RunHistoryTest, ReadsRanksAndTimersFromSteps) {
  const RunHistory history =
      history_of({R"({"type":"ranks","iteration":4,"peak_memory_bytes":[8,9],"peak_by_class":{"other":[1,2]}})",
                  R"({"type":"train","iteration":4,"lm_loss":2,"ranks":{"compute_ms":[5,7],"bubble":[0.5,0.25]},)"
                  R"("timers_ms":{"forward":[3,4],"empty":[],"odd":7}})"});
  ASSERT_EQ(history.ranks.size(), 1u) << "one record per step, whatever its source";
  EXPECT_EQ(history.ranks[0].iteration, 4);
  EXPECT_EQ(history.ranks[0].values.at("peak_memory_bytes"), (Numbers{8, 9}));
  EXPECT_EQ(history.peak_by_class.at("other"), (Numbers{1, 2}));
  EXPECT_EQ(history.ranks[0].values.at("compute_ms"), (Numbers{5, 7}));
  ASSERT_EQ(history.steps.column("timer_forward").size(), 1u);
  EXPECT_EQ(history.steps.column("timer_forward")[0], 4);
  EXPECT_TRUE(history.steps.column("timer_empty").empty() && history.steps.column("timer_odd").empty());
}

TEST(RunHistoryTest, SkipsInvalidRecords) {
  const RunHistory history = history_of(
      {"", "{", "[1]", "7", "null", "\xff\xfe", step(1, "5"), step(2, "null"), step(3, "NaN"), step(4, "1e999"),
       R"({"type":"train"})", R"({"type":"train","iteration":"4"})", R"({"type":"train","iteration":-1})",
       R"({"type":7,"iteration":1})", R"({"type":"train","iteration":5,"lm_loss":"5","experts":[7,{}],"time":3})",
       R"({"type":"ranks","iteration":5,"bubble":[0.5,"x",null],"peak_by_class":[1]})",
       R"({"type":"a later kind","iteration":5})", R"({"type":"train","iteration":6,"lm_lo)"});
  EXPECT_EQ(history.unreadable_lines, 12u);
  EXPECT_EQ(history.steps.iterations(), (Numbers{1, 2, 5}));
  EXPECT_TRUE(std::isnan(losses(history.steps)[1]));
  ASSERT_EQ(history.ranks.size(), 1u);
  EXPECT_EQ(history.ranks[0].values.at("bubble").size(), 3u);
  EXPECT_NO_THROW(nlohmann::json::parse(page_data("", {run_of(history)})));
  EXPECT_NO_THROW(nlohmann::json::parse(std::string(200'000, '['), nullptr, false)) << "deep nesting";
}

TEST(RunHistoryTest, ReadsOutputOfWriter) {
  const Path path = Path(testing::TempDir()) / "report_test" / "written.jsonl";
  std::filesystem::remove(path);
  const Log log;
  JsonlSink sink(path, /*writes_every_iteration=*/false, log);
  ResumePoint start;
  sink.begin(start);
  sink.write_start({.iteration = 0,
                    .train_iters = 9,
                    .world_size = 2,
                    .host = "here\xff",
                    .program = "p 1",
                    .device = "cpu",
                    .config = "[model]\nseq_length = 16\n"});
  IterationStats stats;
  stats.iteration = 1;
  stats.lm_loss = std::numeric_limits<double>::quiet_NaN();
  stats.experts = {{.layer = 1, .tokens = {3, 1}, .max_load = 1.5, .dropped = 0.25}};
  sink.write_line(stats);
  sink.write_event({.kind = RunEvent::Kind::RollBack, .iteration = 1, .text = "back"});
  RankStats rank{.peak_memory_bytes = 100, .bubble = 0.25, .exposed_communication = 0.125};
  rank.peak_by_class[0] = 60;
  sink.write_ranks({.iteration = 1, .ranks = {rank, rank}});
  const RunHistory history = read_run_history(path);
  EXPECT_EQ(history.unreadable_lines, 0u);
  ASSERT_EQ(history.starts.size(), 1u);
  EXPECT_EQ(history.starts[0].train_iters, 9);
  EXPECT_EQ(config_value(history.starts[0].config, "model.seq_length"), "16");
  EXPECT_NEAR(history.starts[0].time, static_cast<double>(std::time(nullptr)), 100);
  ASSERT_EQ(history.events.size(), 1u);
  EXPECT_EQ(history.events[0].kind, "roll back");
  EXPECT_EQ(history.events[0].text, "back");
  ASSERT_EQ(history.ranks.size(), 1u);
  EXPECT_EQ(history.ranks[0].values.at("peak_memory_bytes"), (Numbers{100, 100}));
  EXPECT_EQ(history.peak_by_class.at("parameters"), (Numbers{60, 60}));
  EXPECT_EQ(history.steps.column("largest_expert_load")[0], 1.5);
  ASSERT_EQ(history.experts.size(), 1u);
  EXPECT_EQ(history.experts[0].tokens, (Numbers{3, 1}));
}

TEST(PageDataTest, KeepsSevenDigitsAndAllDigitsOfIntegers) {
  const nlohmann::json run = data_of(history_of(
      {R"({"type":"train","iteration":1,"consumed_samples":123456789012,"lm_loss":1.23456789,"loss_scale":1})",
       R"({"type":"train","iteration":2,"consumed_samples":123456789013,"lm_loss":null,"loss_scale":1})"}));
  EXPECT_EQ(run["steps"]["consumed_samples"], (nlohmann::json{123456789012, 123456789013}));
  EXPECT_EQ(run["steps"]["lm_loss"], (nlohmann::json{1.234568, nullptr}));
  EXPECT_EQ(run["steps"]["loss_scale"], 1) << "a constant column is stored once";
}

TEST(PageDataTest, SpreadsRankRecordsEvenly) {
  EXPECT_TRUE(evenly_spaced_indices(0, 5).empty());
  EXPECT_EQ(evenly_spaced_indices(3, 1), std::vector<std::size_t>{2});
  EXPECT_EQ(evenly_spaced_indices(3, 5), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(evenly_spaced_indices(101, 5), (std::vector<std::size_t>{0, 25, 50, 75, 100}));
}

TEST(ReportPageTest, EscapesTextOfRun) {
  const std::string evil = R"(</script><script>alert(1)</script><!--<img src=x>&{{data}}{{style}})";
  RunHistory history = history_of({step(1, "5")});
  history.samples.push_back({.iteration = 1, .prompt = evil, .text = evil});
  history.events.push_back({.iteration = 1, .time = 0, .kind = evil, .text = evil});
  history.starts.push_back({.host = "", .program = "", .device = "", .config = "[" + evil + "]\n" + evil + " = 1"});
  history.evaluations[evil].add(1, std::vector<std::pair<std::string, double>>{{evil, 1}});
  const std::string page = report_page(evil, {run_of(history, evil)});
  const std::string plain = report_page("title", {run_of(history_of({step(1, "5")}))});
  for (const char* markup : {"</script", "<script", "<img", "<!--"})
    EXPECT_EQ(count(page, markup), count(plain, markup));
  EXPECT_EQ(count(plain, "<script"), 2u);
  EXPECT_NE(page.find("<title>&lt;/script>"), std::string::npos);
  for (const char* network : {"http://", "https://", "url(", "@import", "src="}) {
    std::string rest = plain;
    for (const char* ours : {"http://www.w3.org/2000/svg", "`url(#"}) {  // a name of markup; a part of the page itself
      for (std::size_t at; (at = rest.find(ours)) != std::string::npos;) rest.erase(at, std::string(ours).size());
    }
    EXPECT_EQ(count(rest, network), 0u) << network;
  }
}

std::string config_text(const std::vector<std::string>& more, i64 batch_size = 64) {
  std::vector<std::string> settings{"--training.micro_batch_size=1", str("--training.global_batch_size=", batch_size),
                                    "--training.train_iters=10", "--model.num_layers=4", "--model.vocab_size=256"};
  settings.insert(settings.end(), more.begin(), more.end());
  return print_config(parse_config("", "test", settings));
}

TEST(RunLayoutTest, NamesRanksAndDrawsPipeline) {
  const std::string config =
      config_text({"--parallel.pipeline_model_parallel_size=2", "--parallel.tensor_model_parallel_size=2"});
  const RunLayout layout = make_run_layout(config, 4);
  ASSERT_EQ(layout.rank_names.size(), 4u) << layout.problem;
  EXPECT_EQ(layout.rank_names[3], "rank 3 (tp 1, pp 1)");
  ASSERT_EQ(layout.pipeline.size(), 1u);
  EXPECT_TRUE(layout.pipeline[0].svg.starts_with("<svg"));
  EXPECT_TRUE(layout.pipeline[0].caption.starts_with("1f1b, 64 microbatches")) << layout.pipeline[0].caption;
  EXPECT_TRUE(make_run_layout(config_text({}), 1).pipeline.empty());
  EXPECT_EQ(make_run_layout(config_text({}), 1).rank_names, std::vector<std::string>{"rank 0"});
}

TEST(RunLayoutTest, DrawsOnlyPartOfLongStep) {
  const RunLayout layout = make_run_layout(config_text({"--parallel.pipeline_model_parallel_size=4"}, 8192), 4);
  ASSERT_EQ(layout.pipeline.size(), 1u) << layout.problem;
  EXPECT_NE(layout.pipeline[0].caption.find("8192 microbatches in a step, of which "), std::string::npos);
  EXPECT_LT(layout.pipeline[0].svg.size(), 4'000'000u);
}

TEST(RunLayoutTest, ReportsUnreadableConfiguration) {
  EXPECT_EQ(make_run_layout("", 4).problem, "its configuration is unknown");
  EXPECT_EQ(make_run_layout(config_text({}), 0).problem, "its number of ranks is unknown");
  EXPECT_EQ(make_run_layout(config_text({}), std::numeric_limits<i64>::max()).problem,
            "its number of ranks is unknown");
  EXPECT_NE(make_run_layout("[model]\nlayers_of_another_version = 3\n", 4).problem.find("layers_of_another_version"),
            std::string::npos);
  EXPECT_NE(make_run_layout(config_text({"--parallel.pipeline_model_parallel_size=2"}), 3).problem, "");
}

TEST(RunLayoutTest, ListsKeysOfAnyVersion) {
  using Keys = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(config_keys("[a]\nx = 1\n# y = 2\n\n[b.c]\n  z=[1, 2]\nno key\n[\n"),
            (Keys{{"a.x", "1"}, {"b.c.z", "[1, 2]"}}));
  EXPECT_TRUE(config_keys("").empty());
  const Keys keys = config_keys(config_text({}));
  EXPECT_NE(std::ranges::find(keys, std::pair<std::string, std::string>{"model.num_layers", "4"}), keys.end());
}

}  // namespace
}  // namespace mcpp
