// MFU of the real program: the same peak is used after a resume, and values above 100 % cause a warning.
#include "base/file.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Strings = std::vector<std::string>;

class MfuTest : public EndToEnd {
 protected:
  nlohmann::json stored_peak() const { return nlohmann::json::parse(read_text_file(file())); }
  void store_peak(double tflops) const {
    nlohmann::json peak = stored_peak();
    peak["tflops"] = tflops;
    write_file_atomic(file(), peak.dump());
  }
  Path file() const { return folder_ / "run" / "measured_peak.json"; }
};

TEST_F(MfuTest, UsesSamePeakAfterResume) {
  train("run", {"--training.train_iters=5", "--logging.peak_tflops=0"});
  EXPECT_GT(stored_peak()["tflops"].get<double>(), 0);
  store_peak(1000);
  train("run", {"--training.train_iters=10", "--logging.peak_tflops=0"});
  EXPECT_EQ(stored_peak()["tflops"], 1000);
  for (const nlohmann::json& line : records("run", "train")) {
    if (line["iteration"] <= 5) continue;
    EXPECT_NEAR(line["mfu"].get<double>(), line["tflops"].get<double>() / 1000, 1e-9);
  }
}

TEST_F(MfuTest, RaisesMeasuredPeakAndWarnsWhenStepsAreFaster) {
  train("run", {"--training.train_iters=5", "--logging.peak_tflops=0"});
  store_peak(1e-9);
  const Outcome outcome = run(pretrain("run", {"--training.train_iters=10", "--logging.peak_tflops=0"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "above the measured peak of 0.000");
  EXPECT_GT(stored_peak()["tflops"].get<double>(), 1e-6);
  for (const nlohmann::json& line : records("run", "train")) EXPECT_LE(line["mfu"].get<double>(), 1);
}

TEST_F(MfuTest, WarnsOnceWhenStepsExceedConfiguredPeak) {
  const Outcome outcome = run(pretrain("run", {"--logging.peak_tflops=1e-9", "--logging.log_interval=1"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::string warning = "MFU is above 100 %; set it higher";
  const std::size_t first = outcome.err.find(warning);
  ASSERT_NE(first, std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find(warning, first + 1), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace mcpp
