// Largest attention logits in the logs of a run, and QK-clip: resumed bitwise, not applied by skipped steps.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/readers/event_reader.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class AttentionLogitsLogTest : public EndToEnd {
 protected:
  static Strings clipped(const Strings& more = {}) {
    Strings words{"--optimizer.qk_clip", "--optimizer.qk_clip_threshold=0.1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the largest logits by iteration and layer.
  std::vector<std::vector<double>> logits(const std::string& save, const char* member = "max") const {
    std::vector<std::vector<double>> result;
    for (const Json& line : records(save, "train")) {
      std::vector<double>& of_step = result.emplace_back();
      for (const Json& layer : line.value("attention_logits", Json::array())) of_step.push_back(layer[member]);
    }
    return result;
  }
};

TEST_F(AttentionLogitsLogTest, AreLoggedWithoutEffectOnTraining) {
  train("plain");
  const std::string log =
      run_ok(pretrain("run", {"--logging.log_max_attention_logit", "--logging.tensorboard_dir=" + at("tb")}));
  EXPECT_CONTAINS(log, " max attention logit: ");
  EXPECT_CONTAINS(run({"checkpoint", "diff", at("plain"), at("run")}).out, " tensors compared, 0 differ");
  const auto found = logits("run");
  ASSERT_EQ(found.size(), 12u);
  const test::Events events = test::read_events(folder_ / "tb");
  const auto& curve = events.scalars.at("max_attention_logit");
  ASSERT_EQ(curve.size(), 12u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), 2u) << "layers";
    EXPECT_FLOAT_EQ(curve[i].second, static_cast<float>(std::max(found[i][0], found[i][1])));
  }
  EXPECT_EQ(events.scalars.at("max_attention_logit/layer_1").size(), 12u);
  EXPECT_EQ(logits("plain"), std::vector<std::vector<double>>(12));
}

TEST_F(AttentionLogitsLogTest, AreLimitedByClipThatResumesBitwiseIdentically) {
  for (const std::string precision : {"fp32", "bf16"}) {
    const Strings args = clipped(in_precision(precision));
    const std::string whole = "whole_" + precision, parts = "parts_" + precision, plain = "plain_" + precision;
    train(whole, args);
    train(parts, plus(args, "--training.exit_interval=5"));
    train(parts, args);
    expect_same_checkpoint(whole, parts);
    EXPECT_EQ(logits(whole), logits(parts));
    train(plain, plus(in_precision(precision), "--logging.log_max_attention_logit"));
    const auto limited = logits(whole), free = logits(plain);
    EXPECT_GT(free.back()[0], 0.3) << "the threshold must matter";
    EXPECT_LT(limited.back()[0], 0.2) << "an update may exceed the threshold until the next clip";
    i64 clips = 0;
    for (const auto& step : logits(whole, "clipped_heads")) clips += step[0] > 0;
    EXPECT_GT(clips, 3);
  }
}

TEST_F(AttentionLogitsLogTest, SkippedStepClipsNothing) {
  train("nan", clipped({"--fault_injection.kind=nan_grad", "--fault_injection.iteration=6"}));
  train("run", clipped({"--training.iterations_to_skip=6"}));
  EXPECT_CONTAINS(run({"checkpoint", "diff", at("nan"), at("run")}).out, " tensors compared, 0 differ");
}

TEST_F(AttentionLogitsLogTest, RejectsBadInput) {
  const auto expect_refused = [&](const Strings& args, const std::string& message) {
    const Outcome outcome = run(pretrain("bad", args));
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, message);
  };
  expect_refused({"--optimizer.qk_clip_threshold=50"},
                 "optimizer.qk_clip_threshold, qk_clip_alpha: only read when qk_clip is true");
  expect_refused({"--optimizer.qk_clip", "--optimizer.qk_clip_threshold=0"}, "optimizer.qk_clip_threshold");
  expect_refused({"--optimizer.qk_clip", "--optimizer.qk_clip_alpha=1.5"}, "optimizer.qk_clip_alpha");
  expect_refused({"--optimizer.qk_clip", "--model.qk_layernorm"},
                 "optimizer.qk_clip: scales weights, but model.qk_layernorm already limits the attention logits");
  expect_refused({"--optimizer.qk_clip", "--model.attn_logit_softcapping=30"}, "model.attn_logit_softcapping");
  train("run", {"--training.exit_interval=4"});
  const Outcome changed = run(pretrain("run", {"--optimizer.qk_clip"}));
  EXPECT_EQ(changed.code, 2);
  EXPECT_CONTAINS(changed.err, "--checkpoint.allow_changed_keys=optimizer.qk_clip");
  train("run", {"--optimizer.qk_clip", "--checkpoint.allow_changed_keys=optimizer.qk_clip"});
}

}  // namespace
}  // namespace mcpp
