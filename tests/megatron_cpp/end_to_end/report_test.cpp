// Records that a run writes in addition to its losses, and the page that `report` creates from them.
// tests/report/run.sh tests the page in a browser.
#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class ReportEndToEndTest : public EndToEndOnRanks {
 protected:
  std::vector<std::string> events(const std::string& save) const {
    std::vector<std::string> found;
    for (const nlohmann::json& line : records(save, "event"))
      found.push_back(str(line["event"].get<std::string>(), " ", line["iteration"]));
    return found;
  }
  /// Returns the data that the page passes to its scripts.
  nlohmann::json page(const std::string& name) const {
    const std::string html = read_text_file(at(name)), begin = R"(<script id="data" type="application/json">)";
    const std::size_t from = html.find(begin) + begin.size();
    return nlohmann::json::parse(html.substr(from, html.find("</script>", from) - from));
  }
  static Strings sampling(const std::string& prompt) {
    return {"--logging.sample_prompt=" + prompt, "--logging.sample_tokens=5"};
  }
};

using Strings = std::vector<std::string>;

TEST_F(ReportEndToEndTest, RecordsStartsEventsRanksAndSamples) {
  Strings more = sampling("ROMEO:");
  more.insert(more.end(), {"--fault_injection.kind=nan_loss", "--fault_injection.iteration=6"});
  Strings first = more;
  first.push_back("--training.exit_interval=7");
  train("run", first);
  train("run", more);
  const auto starts = records("run", "run");
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts[0]["iteration"], 0);
  EXPECT_EQ(starts[1]["iteration"], 7);
  EXPECT_CONTAINS(starts[1]["config"].get<std::string>(), "nan_loss");
  EXPECT_EQ(events("run"), (Strings{"save 4", "cause 6", "skip 6", "save 7", "end 7", "save 8", "save 12", "end 12"}));
  const auto ranks = records("run", "ranks");
  ASSERT_FALSE(ranks.empty());
  EXPECT_EQ(ranks.back()["peak_memory_bytes"].size(), 1u);
  EXPECT_GT(ranks.back()["peak_by_class"]["parameters"][0], 0);

  run_ok({"report", at("run"), "--output=" + at("report.html")});
  const nlohmann::json runs = page("report.html")["runs"][0];
  EXPECT_EQ(runs["steps"]["iteration"].size(), 12u);
  EXPECT_TRUE(runs["steps"]["lm_loss"][5].is_null());
  EXPECT_EQ(runs["events"].size(), 8u);
  EXPECT_EQ(runs["samples"].size(), records("run", "sample").size());
  EXPECT_EQ(runs["samples"].size(), runs["evaluations"]["validation"]["iteration"].size());
  EXPECT_EQ(runs["samples"][0]["prompt"], "ROMEO:");
  EXPECT_NE(runs["samples"][0]["text"], "");
}

TEST_F(ReportEndToEndTest, SamplesAreIndependentOfLayoutAndDoNotChangeTraining) {
  train("plain");
  train("sampled", sampling("ROMEO:"));
  expect_same_checkpoint("plain", "sampled");
  Strings args = pretrain("ranks", sampling("ROMEO:"));
  args.push_back("--parallel.pipeline_model_parallel_size=2");
  const Outcome outcome = run_on(2, args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto one = records("sampled", "sample"), two = records("ranks", "sample");
  ASSERT_FALSE(one.empty());
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i]["text"], two[i]["text"]);
  EXPECT_EQ(records("ranks", "ranks").back()["bubble"].size(), 2u);
  run_ok({"report", at("ranks"), at("sampled"), "--output=" + at("report.html")});
  const nlohmann::json runs = page("report.html")["runs"];
  EXPECT_EQ(runs[0]["layout"]["rank_names"], (Strings{"rank 0 (pp 0)", "rank 1 (pp 1)"}));
  EXPECT_EQ(runs[0]["layout"]["pipeline"].size(), 1u) << runs[0]["layout"]["problem"];
  EXPECT_TRUE(runs[1]["layout"]["pipeline"].empty());
}

TEST_F(ReportEndToEndTest, RejectsUnusablePrompt) {
  const Outcome none =
      run(pretrain("run", {"--logging.sample_prompt=a", "--data.tokenizer_model=", "--model.vocab_size=400"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_CONTAINS(none.err, ": needs data.tokenizer_model");
  const Outcome outcome = run(pretrain("run", {"--logging.sample_prompt=" + std::string(100, 'Z')}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "fewer than model.seq_length 32");
}

TEST_F(ReportEndToEndTest, RefusesToReadNonRunsOrOverwriteRuns) {
  std::filesystem::create_directories(at("nothing"));
  write_file_atomic(at("metrics.jsonl"), "{\"type\":\"train\",\"iteration\":1,\"lm_loss\":2}\n");
  const Outcome none = run({"report", at("nothing"), at("absent"), "--output=" + at("report.html")});
  EXPECT_EQ(none.code, 2);
  EXPECT_CONTAINS(none.err, at("nothing") + ": has no metrics.jsonl");
  EXPECT_CONTAINS(none.err, at("absent") + ": is neither a folder nor a file");
  const Outcome same = run({"report", at(""), "--output=" + at("metrics.jsonl")});
  EXPECT_EQ(same.code, 2);
  EXPECT_CONTAINS(same.err, "is a file of the run, which the page would replace");
  EXPECT_EQ(run({"report", at(""), "--output=" + at("nothing")}).code, 2);
  EXPECT_EQ(run({"report", at(""), "--output=" + at("absent/report.html")}).code, 2);
  EXPECT_EQ(run({"report", at(""), "--output="}).code, 2);
  EXPECT_EQ(run({"report"}).code, 2);
  EXPECT_FALSE(std::filesystem::exists(at("report.html")));
  EXPECT_EQ(run({"report", at(""), "--output=" + at("report.html")}, 1000).code, 2) << "a disk that is full";
  EXPECT_FALSE(std::filesystem::exists(at("report.html")));
  EXPECT_CONTAINS(run_ok({"report", at(""), "--output=" + at("report.html")}), "1 run");
  EXPECT_EQ(metrics("").size(), 1u);
}

}  // namespace
}  // namespace mcpp
