// checkpoint average: a checkpoint that every command loads, with the average of the weights of other checkpoints.
#include "checkpoint/load/reader.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class CheckpointAverageTest : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    train("run");  // saves at 4, 8 and 12
  }
  double loss_of(const std::string& load) const {
    return Json::parse(
        run_ok({"evaluate", "--load=" + at(load), "--text=" + (root() / "held_out.txt").string(), "--json"}))["loss"];
  }
  static std::vector<float> values(const Path& checkpoint, const std::string& tensor) {
    CpuDevice device;
    const Tensor all = CheckpointReader(checkpoint).read_full_tensor(tensor, device);
    return {all.data<float>(), all.data<float>() + all.numel()};
  }
  /// Expects that all weights are sums of the weights of iterations 4, 8 and 12 with these coefficients.
  void expect_sum(const std::string& save, const std::array<double, 3>& coefficients) const {
    const Path result = folder_ / save / "iter_0000012";
    const Manifest manifest = read_manifest(result);
    EXPECT_EQ(manifest.state.iteration, 12);
    for (const TensorEntry& tensor : manifest.tensors) {
      ASSERT_TRUE(tensor.name.starts_with("model/")) << tensor.name;
      const std::vector<float> sum = values(result, tensor.name);
      std::vector<double> expected(sum.size(), 0.0);
      for (std::size_t c = 0; c < 3; ++c) {
        const std::vector<float> term =
            values(folder_ / "run" / std::array{"iter_0000004", "iter_0000008", "iter_0000012"}[c], tensor.name);
        for (std::size_t i = 0; i < term.size(); ++i) expected[i] += coefficients[c] * term[i];
      }
      for (std::size_t i = 0; i < sum.size(); ++i)
        ASSERT_NEAR(sum[i], expected[i], 1e-7 * std::abs(expected[i]) + 1e-12) << tensor.name << " " << i;
    }
  }
  void expect_refused(const Strings& args, const std::string& message) const {
    Strings all{"checkpoint", "average", "--save=" + at("refused")};
    all.insert(all.end(), args.begin(), args.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, message);
    EXPECT_FALSE(std::filesystem::exists(at("refused/iter_0000012")));
  }
};

TEST_F(CheckpointAverageTest, AveragesFolderAndLists) {
  const std::string a = at("run/iter_0000004"), b = at("run/iter_0000008"), c = at("run/iter_0000012");
  EXPECT_CONTAINS(run_ok({"checkpoint", "average", at("run"), "--save=" + at("mean")}), "0.3333 x " + a);
  expect_sum("mean", {1.0 / 3, 1.0 / 3, 1.0 / 3});
  run_ok({"checkpoint", "average", "--save=" + at("latest"), at("run"), "--latest_k=2"});
  expect_sum("latest", {0, 0.5, 0.5});
  run_ok({"checkpoint", "average", "--save=" + at("given"), "--coefficients=0.5,0.2,0.3", c, a, b});
  expect_sum("given", {0.2, 0.3, 0.5});
  run_ok({"checkpoint", "average", "--save=" + at("ema"), "--ema_decay=0.75", at("run")});
  expect_sum("ema", {0.5625, 0.1875, 0.25});
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("given")}), "average_of");
}

TEST_F(CheckpointAverageTest, IsLoadedByEveryCommand) {
  run_ok({"checkpoint", "average", at("run"), "--latest_k=2", "--save=" + at("mean")});
  run_ok({"checkpoint", "verify", at("mean")});
  EXPECT_NE(loss_of("mean"), loss_of("run"));
  run_ok({"checkpoint", "export-hf", at("mean"), at("hf")});
  run_ok({"checkpoint", "import-hf", at("hf"), "--save=" + at("imported")});
  EXPECT_EQ(loss_of("imported"), loss_of("mean"));
  run_ok({"generate", "--load=" + at("mean"), "--prompt=the", "--max_new_tokens=4"});
  EXPECT_CONTAINS(run_ok(pretrain("tuned", {"--checkpoint.load=" + at("mean"), "--checkpoint.finetune",
                                            "--training.train_iters=2", "--optimizer.lr_warmup_iters=0"})),
                  "starting from the weights of " + at("mean/iter_0000012"));
  const Outcome resumed = run(pretrain("resumed", {"--checkpoint.load=" + at("mean")}));
  EXPECT_EQ(resumed.code, 2);
  EXPECT_CONTAINS(resumed.err, "has only weights");
  const Outcome averaged = run({"generate", "--load=" + at("mean"), "--weights=ema"});
  EXPECT_EQ(averaged.code, 2);
  EXPECT_CONTAINS(averaged.err, "has no averaged weights, because it has only the weights of a model");
}

TEST_F(CheckpointAverageTest, LeavesOutCheckpointsThatUserRejected) {
  write_file_atomic(folder_ / "run" / "latest", "iter_0000008\n");
  const std::string log = run_ok({"checkpoint", "average", at("run"), "--save=" + at("mean")});
  EXPECT_CONTAINS(log, "0.5000 x " + at("run/iter_0000008"));
  EXPECT_EQ(log.find("iter_0000012"), log.npos);
}

TEST_F(CheckpointAverageTest, RejectsBadInput) {
  const std::string a = at("run/iter_0000004"), b = at("run/iter_0000008"), c = at("run/iter_0000012");
  expect_refused({a}, "an average needs at least two");
  expect_refused({a, b, at("run/../run/iter_0000004")}, "occurs twice");
  expect_refused({at("nothing")}, "is neither a checkpoint nor a folder of checkpoints");
  expect_refused({at("run"), "--latest_k=4"}, "has only 3 checkpoints");
  expect_refused({a, b, "--latest_k=2"}, "--latest_k: applies only if --load is one folder of checkpoints");
  expect_refused({a, b, "--coefficients=0.5,0.6"}, "--coefficients: must add up to 1, not 1.1");
  expect_refused({a, b, "--coefficients=0.5,0.3,0.2"}, "--coefficients: has 3 values for 2 checkpoints");
  expect_refused({a, b, "--coefficients=0.5,0.5", "--ema_decay=0.5"}, "exclude each other");
  expect_refused({b, a, "--ema_decay=0.5"}, "list the checkpoints oldest first");
  expect_refused({a, b, "--ema_decay=1"}, "ema_decay");
  const Outcome own = run({"checkpoint", "average", a, b, "--save=" + at("run")});
  EXPECT_EQ(own.code, 2);
  EXPECT_CONTAINS(own.err, "contains checkpoints, which are never changed");
  train("wide", {"--model.hidden_size=64", "--training.train_iters=4"});
  expect_refused({c, at("wide")}, " has the weights of a different model:\n  model.hidden_size: 64, but 32 in " + c +
                                      "\nOnly checkpoints of one model have an average");
  std::string bytes = read_text_file(b + "/shard_00000-of-00001.h5");
  for (std::size_t i = bytes.size() / 4; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(bytes[i] ^ 0x40);
  write_file_atomic(b + "/shard_00000-of-00001.h5", bytes);
  expect_refused({at("run")}, "iter_0000008/shard_00000-of-00001.h5");
}

}  // namespace
}  // namespace mcpp
