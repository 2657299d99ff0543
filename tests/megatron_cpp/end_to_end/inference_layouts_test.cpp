// Evaluation and generation with the program on several ranks: the same numbers and the same text on every layout.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class InferenceLayouts : public EndToEnd {
 protected:
  static Words layout(int tp, int pp) {
    return {str("--parallel.tensor_model_parallel_size=", tp), str("--parallel.pipeline_model_parallel_size=", pp)};
  }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words evaluate(const Words& more = {}) const {
    return joined({"evaluate", str("--load=", at("run")), str("--text=", (root() / "held_out.txt").string()),
                   "--stride=8", "--json"},
                  more);
  }
  Words generate(const Words& more = {}) const {
    return joined({"generate", str("--load=", at("run")), "--prompt=ROMEO:", "--max_new_tokens=40", "--seed=3"}, more);
  }
  /// What it prints on so many ranks, without the lines of progress that mpirun's terminal makes it print.
  static std::string on(int ranks, const Words& args) {
    const Outcome outcome = run_on(ranks, args);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }
  static nlohmann::json json_of(const std::string& text) { return nlohmann::json::parse(text.substr(text.find('{'))); }
};

TEST_F(InferenceLayouts, PerplexityIsTheSame) {
  train("run");
  const nlohmann::json one = json_of(good(evaluate()));
  // Where no sum is cut over ranks, to the bit.
  for (const auto& [ranks, keys] : {std::pair{2, layout(1, 1)}, {2, layout(1, 2)}, {4, layout(1, 2)}}) {
    const nlohmann::json many = json_of(on(ranks, evaluate(keys)));
    EXPECT_EQ(many["nll"], one["nll"]) << ranks << " ranks";
    EXPECT_EQ(many["tokens"], one["tokens"]);
    EXPECT_EQ(many["bytes"], one["bytes"]);
  }
  for (const auto& [ranks, keys] : {std::pair{2, layout(2, 1)}, {4, layout(4, 1)}, {8, layout(2, 2)}}) {
    const nlohmann::json many = json_of(on(ranks, evaluate(keys)));
    EXPECT_NEAR(many["nll"].get<double>() / one["nll"].get<double>(), 1, 1e-7) << ranks << " ranks";
    EXPECT_EQ(many["tokens"], one["tokens"]);
  }
}

TEST_F(InferenceLayouts, TextIsTheSame) {
  train("run");
  const std::string one = good(generate());
  EXPECT_EQ(on(2, generate(layout(1, 2))), one);
  EXPECT_EQ(on(2, generate(layout(2, 1))), one);
  EXPECT_EQ(on(4, generate(layout(2, 2))), one);
}

TEST_F(InferenceLayouts, WhatCannotBeIsNamed) {
  train("run");
  const Outcome copies = run_on(2, generate());
  EXPECT_EQ(copies.code, 2);
  EXPECT_CONTAINS(copies.err, "start as many ranks as --parallel.tensor_model_parallel_size");
  const Outcome heads = run_on(3, evaluate(layout(3, 1)));
  EXPECT_EQ(heads.code, 2);
  EXPECT_CONTAINS(heads.err, "tensor_model_parallel_size = 3 does not divide num_attention_heads = 4");
  const Outcome training = run(evaluate({"--parallel.zero_stage=1"}));
  EXPECT_EQ(training.code, 2);
  EXPECT_CONTAINS(training.err, "zero_stage");
}

}  // namespace
}  // namespace mcpp
