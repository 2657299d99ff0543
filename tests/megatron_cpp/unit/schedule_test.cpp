// The real program draws and compares schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/strings.h"
#include "parallel/pp/schedule_kind.h"
#include "tests/support/build.h"
#include "tests/support/program.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ScheduleCommandTest : public testing::Test {
 protected:
  test::Outcome run(std::vector<std::string> args) const {
    args.insert(args.begin(), "schedule");
    return test::Program(args, folder_ / "process").wait();
  }
  std::string output(const std::vector<std::string>& args) const {
    const test::Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  void expect_refused(const std::vector<std::string>& args, const std::vector<std::string>& parts) const {
    const test::Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    for (const std::string& part : parts) EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  test::ScratchFolder folder_;
};

TEST_F(ScheduleCommandTest, DrawsScheduleAndReportsItsCosts) {
  EXPECT_EQ(output({"1f1b", "--pipeline_model_parallel_size=2", "--num_microbatches=3"}),
            "rank 0  |01..aa2bb.cc|\n"
            "rank 1  |.0aa1bb2cc..|\n"
            "forward 0-9, backward or input gradient a-j, weight gradient A-J, idle .\n"
            "2 ranks, 1 chunk per rank, 3 microbatches: time 12, bubble 25 %, at most 2 microbatches in memory\n"
            "rank         works     waits  microbatches stored, at most\n"
            "0                9         3                             2\n"
            "1                9         0                             1\n"
            "bubble                 25.0 %; published formula, without messages: 25.0 %\n"
            "exposed communication  0\n");
}

// Each of a rank's two chunks takes half of its time, so that schedules can be compared.
TEST_F(ScheduleCommandTest, CostsArePerRank) {
  const std::string out = output({"zb-v", "--pipeline_model_parallel_size=1", "--num_microbatches=1"});
  EXPECT_THAT(out, HasSubstr("rank 0  |00aAaA|\n"));
  EXPECT_THAT(out, HasSubstr("time 3, bubble 0 %"));
}

TEST_F(ScheduleCommandTest, ReportsExposedCommunication) {
  // F, message, F, B, message, B, reduction.
  const std::string out = output({"gpipe", "--pipeline_model_parallel_size=2", "--num_microbatches=1", "--forward=2",
                                  "--backward_input=3", "--message=0.5", "--reduce_grad=10"});
  EXPECT_THAT(out, HasSubstr("time 23,"));
  EXPECT_THAT(out, HasSubstr("exposed communication  11\n"));
}

TEST_F(ScheduleCommandTest, ComparesAllSchedules) {
  const std::string out = output({"all"});
  EXPECT_THAT(out, AllOf(HasSubstr("4 ranks, 8 microbatches\n"),
                         HasSubstr("\ngpipe              1    27.3 %     27.3 %        33            8         0\n"),
                         HasSubstr("\n1f1b               1    27.3 %     27.3 %        33            4         0\n"),
                         HasSubstr("\ninterleaved        2    15.8 %     15.8 %      28.5          5.5         0\n"),
                         HasSubstr("\nzb-h1              1    11.1 %     11.1 %        27            4         0\n"),
                         HasSubstr("\nzb-v               2     0.0 %      0.0 %      25.5            4         0\n"),
                         HasSubstr("\ndualpipe-v         2     5.9 %      5.9 %      25.5          4.5         0\n")));
  EXPECT_THAT(
      output({"all", "--num_microbatches=6", "--forward=2"}),
      AllOf(HasSubstr("\ninterleaved        2  impossible: pipeline_schedule = interleaved needs"),
            HasSubstr("nearest: 4 or 8\n"), HasSubstr("\nzb-v               2 "), HasSubstr(" %          -  ")));
  EXPECT_THAT(output({"all", "--num_virtual_stages_per_pipeline_rank=4"}),
              HasSubstr("\ninterleaved        4     8.6 %"));
}

// The table of docs/pipeline_parallelism.md matches the command's output and kSchedules.
TEST_F(ScheduleCommandTest, MatchesDocumentation) {
  const std::string page = read_text_file(test::source_folder() / "docs/pipeline_parallelism.md");
  for (const std::string chunks : {"0", "4"}) {
    std::istringstream lines(output({"all", "--num_virtual_stages_per_pipeline_rank=" + chunks}));
    std::size_t kinds = 0;
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name, of_rank, bubble, percent, published, time, kept;
      words >> name >> of_rank >> bubble >> percent >> published >> percent >> time >> kept;
      const auto row = std::ranges::find(kSchedules, name, &ScheduleRow::name);
      if (row == kSchedules.end()) continue;
      ++kinds;
      EXPECT_THAT(page,
                  HasSubstr(str("\n| ", name, " | ", of_rank, " | ", bubble, " % | ", row->formula, " | ", time, " | ",
                                kept, " | ", row->needs_multiple_of_ranks ? "multiples of p" : "any", " |\n")));
    }
    EXPECT_EQ(kinds, kSchedules.size());
  }
}

TEST_F(ScheduleCommandTest, WritesSvg) {
  const Path file = folder_ / "zb.svg";
  output({"zb-h1", "--svg=" + file.string()});
  EXPECT_THAT(read_text_file(file), AllOf(testing::StartsWith("<svg "), testing::EndsWith("</svg>\n")));
}

TEST_F(ScheduleCommandTest, ReportsAllBadInputTogether) {
  expect_refused({"interleaved", "--num_microbatches=6", "--num_virtual_stages_per_pipeline_rank=1"},
                 {"needs num_virtual_stages_per_pipeline_rank of at least 2, not 1", "nearest: 4 or 8"});
  expect_refused({"zbv", "--width=3", "--forward=-1"},
                 {"must be one of \"gpipe\"", "--width=3: must be at least 10", "--forward=-1: must be at least 0"});
  expect_refused(
      {"all", "--svg=x", "--pipeline_model_parallel_size=256", "--num_microbatches=8192"},
      {"svg: needs one schedule", "gpipe: 1 x 256 stages x 8192 microbatches are more than", "zb-v: 2 x 256 stages"});
  for (const char* key : {"forward", "backward_input", "backward_weight", "message", "reduce_grad"})
    expect_refused({"zb-v", std::string("--") + key + "=1e308"}, {"at most 1e+100, not 1e+308"});
  const std::string large = output({"all", "--forward=1e100", "--message=1e100"});
  EXPECT_THAT(large, testing::Not(HasSubstr("inf")));
  expect_refused({"zb-v", "--svg=" + (folder_ / "no" / "folder.svg").string()}, {"folder.svg"});
}

}  // namespace
}  // namespace mcpp
