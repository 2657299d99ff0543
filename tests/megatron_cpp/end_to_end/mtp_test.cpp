// Multi-token prediction with the real program: logged losses, resume on another layout, evaluation and generation.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class MtpEndToEndTest : public EndToEnd {
 protected:
  static Strings with_mtp(const Strings& more = {}) {
    Strings words{"--model.position_embedding_type=rope", "--model.mtp_num_layers=2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::vector<double>> mtp_losses(const std::string& run) const {
    std::vector<std::vector<double>> losses;
    for (const nlohmann::json& line : metrics(run))
      if (line.contains("mtp_losses")) losses.push_back(line["mtp_losses"].get<std::vector<double>>());
    return losses;
  }
};

TEST_F(MtpEndToEndTest, LogsSameLossesOnEveryLayout) {
  EXPECT_CONTAINS(run_ok(pretrain("run", with_mtp())), "| mtp_2 loss: ");
  const auto expected = mtp_losses("run");
  ASSERT_FALSE(expected.empty());
  const Outcome outcome = run_on(
      4, pretrain("layout",
                  with_mtp({"--parallel.tensor_model_parallel_size=2", "--parallel.pipeline_model_parallel_size=2",
                            "--parallel.pipeline_model_parallel_layout=Ett|mmL"})));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto losses = mtp_losses("layout");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t step = 0; step < losses.size(); ++step) {
    ASSERT_EQ(losses[step].size(), 2u);
    for (std::size_t k = 0; k < 2; ++k) EXPECT_NEAR(losses[step][k] / expected[step][k], 1, 1e-5);
  }
}

/// A run continues with the layers in a stage of their own, and then in the stage of the output, bitwise like on one
/// rank. Evaluation during training does not use them.
TEST_F(MtpEndToEndTest, ResumesWithPredictionInAnotherStage) {
  const Strings words = with_mtp({"--model.untie_embeddings_and_output_weights"});
  const auto on_stages = [&](const std::string& ranks, const std::string& stages) {
    return plus(plus(words, "--parallel.pipeline_model_parallel_size=" + ranks),
                "--parallel.pipeline_model_parallel_layout=" + stages);
  };
  train("whole", words);
  train("run", plus(words, "--training.exit_interval=4"));
  const Outcome apart = run_on(3, pretrain("run", plus(on_stages("3", "Ett|mm|L"), "--training.exit_interval=8")));
  ASSERT_EQ(apart.code, 0) << apart.out << apart.err;
  const Outcome together = run_on(2, pretrain("run", on_stages("2", "Ett|mmL")));
  ASSERT_EQ(together.code, 0) << together.out << together.err;
  expect_same_checkpoint("run", "whole");
  EXPECT_EQ(losses("run", 12), losses("whole", 12));
  EXPECT_EQ(mtp_losses("run"), mtp_losses("whole"));
}

TEST_F(MtpEndToEndTest, RejectsPredictionStageInEvaluationAndWithTiedEmbeddings) {
  const Strings stages{"--parallel.pipeline_model_parallel_size=3",
                       "--parallel.pipeline_model_parallel_layout=Ett|mm|L"};
  const Outcome tied = run(plus(pretrain("tied", with_mtp(stages)), "--dry_run"));
  EXPECT_EQ(tied.code, 2);
  EXPECT_CONTAINS(tied.err, "in a stage without L needs untie_embeddings_and_output_weights = true");
  train("run", with_mtp());
  Strings evaluate{"evaluate", str("--load=", at("run")), str("--text=", (root() / "held_out.txt").string())};
  evaluate.insert(evaluate.end(), stages.begin(), stages.end());
  const Outcome outcome = run_on(3, evaluate);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "it has 2 layers of multi-token prediction (m), but mtp_num_layers = 0; remove m");
}

TEST_F(MtpEndToEndTest, EvaluationAndGenerationDoNotUseMtp) {
  train("run", with_mtp());
  EXPECT_CONTAINS(run_ok({"evaluate", str("--load=", at("run")), str("--text=", (root() / "held_out.txt").string())}),
                  "loss per token");
  run_ok({"generate", str("--load=", at("run")), "--prompt=ROMEO:", "--max_new_tokens=5"});
}

TEST_F(MtpEndToEndTest, ExportsModelWithoutMtpWhenNoModelTypeHasIt) {
  train("run",
        with_mtp({"--model.add_bias_linear=false", "--model.normalization=RMSNorm", "--model.activation_func=swiglu"}));
  EXPECT_CONTAINS(run({"checkpoint", "export-hf", at("run"), at("exported")}).err,
                  "the layers of multi-token prediction are not exported");
  run_ok({"checkpoint", "import-hf", at("exported"), str("--save=", at("imported"))});
  const auto perplexity = [&](const std::string& name) {
    return run_ok({"evaluate", str("--load=", at(name)), str("--text=", (root() / "held_out.txt").string()), "--json"});
  };
  const auto nll = [](const std::string& out) {
    return nlohmann::json::parse(out.substr(out.find('{')))["nll"].get<double>();
  };
  EXPECT_NEAR(nll(perplexity("imported")) / nll(perplexity("run")), 1, 1e-9);
}

class PublishedMtpTest : public MtpEndToEndTest, public testing::WithParamInterface<const char*> {
 protected:
  /// Returns the keys of a small model of the type.
  static Strings model() {
    const std::string_view type = GetParam();
    const Strings all{"--model.normalization=RMSNorm", "--model.add_bias_linear=false", "--model.hidden_dropout=0",
                      "--model.attention_dropout=0"};
    if (type == "nemotron_h") return joined(all, nemotron());
    return joined(joined(all, {"--model.position_embedding_type=rope", "--model.activation_func=swiglu"}),
                  type == "deepseek_v3" ? deepseek() : qwen());
  }
  static Strings nemotron() {
    return {"--model.mtp_num_layers=2",
            "--model.mtp_hybrid_layer_pattern=*-",
            "--model.hybrid_layer_pattern=*M",
            "--model.position_embedding_type=none",
            "--model.activation_func=squared_relu",
            "--model.untie_embeddings_and_output_weights",
            "--model.mamba_state_dim=8",
            "--model.mamba_num_heads=8",
            "--model.mamba_head_dim=8",
            "--model.mamba_num_groups=2"};
  }
  static Strings deepseek() {
    return {"--model.mtp_num_layers=2",
            "--model.untie_embeddings_and_output_weights",
            "--model.multi_latent_attention",
            "--model.q_lora_rank=16",
            "--model.kv_lora_rank=16",
            "--model.qk_head_dim=8",
            "--model.qk_pos_emb_head_dim=8",
            "--model.v_head_dim=8",
            "--model.latent_norm_epsilon=1e-6",
            "--model.num_experts=4",
            "--model.moe_router_topk=2",
            "--model.moe_router_score_function=sigmoid",
            "--model.moe_router_enable_expert_bias",
            "--model.moe_router_topk_scaling_factor=2.5",
            "--model.moe_ffn_hidden_size=16",
            "--model.moe_shared_expert_intermediate_size=16"};
  }
  static Strings qwen() {
    return {"--model.mtp_num_layers=1",
            "--model.mtp_hybrid_layer_pattern=*-",
            "--model.linear_attention_freq=[0, 1]",
            "--model.attention_output_gate=[1]",
            "--model.linear_num_key_heads=2",
            "--model.linear_num_value_heads=4",
            "--model.linear_key_head_dim=8",
            "--model.linear_value_head_dim=8",
            "--model.qk_layernorm",
            "--model.apply_layernorm_1p"};
  }
  /// Returns the arguments of a run that starts from the weights in `load`.
  Strings finetune(const std::string& save, const std::string& load, const Strings& more = {}) const {
    const Strings start{"--checkpoint.finetune", str("--checkpoint.load=", at(load))};
    return pretrain(save, joined(joined(model(), start), more));
  }
};

INSTANTIATE_TEST_SUITE_P(ModelTypes, PublishedMtpTest, testing::Values("deepseek_v3", "qwen3_5_text", "nemotron_h"),
                         [](const auto& p) { return std::string(p.param); });

/// Training from an exported and imported model matches training from the original checkpoint, also on a different
/// layout.
TEST_P(PublishedMtpTest, ContinuesTrainingAfterExportAndImport) {
  train("run", model());
  run_ok({"checkpoint", "export-hf", at("run"), at("exported"), str("--model_type=", GetParam())});
  run_ok({"checkpoint", "import-hf", at("exported"), str("--save=", at("imported"))});
  run_ok(finetune("from_run", "run"));
  run_ok(finetune("from_import", "imported"));
  EXPECT_EQ(losses("from_import", 12), losses("from_run", 12));
  const auto expected = mtp_losses("from_run");
  ASSERT_FALSE(expected.empty());
  EXPECT_EQ(mtp_losses("from_import"), expected);
  Strings layout{"--parallel.tensor_model_parallel_size=2", "--parallel.pipeline_model_parallel_size=2",
                 "--parallel.pipeline_model_parallel_layout=Ett|m*2L"};
  if (std::string_view(GetParam()) == "qwen3_5_text")
    layout.back() = "--parallel.pipeline_model_parallel_layout=Ett|mL";
  if (std::string_view(GetParam()) == "deepseek_v3") layout.emplace_back("--parallel.sequence_parallel");
  const Outcome outcome = run_on(4, finetune("layout", "imported", layout));
  ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const auto on_layout = mtp_losses("layout");
  ASSERT_EQ(on_layout.size(), expected.size());
  for (std::size_t step = 0; step < expected.size(); ++step)
    for (std::size_t k = 0; k < expected[step].size(); ++k)
      EXPECT_NEAR(on_layout[step][k] / expected[step][k], 1, 1e-5);
}

TEST_P(PublishedMtpTest, TrainsAndImportsWithoutMtpOnRequest) {
  train("run", model());
  Strings without = finetune("without", "run");
  std::erase_if(without, [](const std::string& word) { return word.starts_with("--model.mtp_"); });
  const Outcome outcome = run(without);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err,
                  "layers of multi-token prediction are left out; to train them, set --model.mtp_num_layers=");
  EXPECT_TRUE(mtp_losses("without").empty());
  EXPECT_FALSE(losses("without", 12).empty());
  run_ok({"checkpoint", "export-hf", at("run"), at("exported"), str("--model_type=", GetParam())});
  const Outcome imported =
      run({"checkpoint", "import-hf", at("exported"), str("--save=", at("imported")), "--mtp_num_layers=0"});
  ASSERT_EQ(imported.code, 0) << imported.err;
  EXPECT_CONTAINS(imported.err, "the layers for multi-token prediction are not imported: ");
  EXPECT_CONTAINS(
      run({"checkpoint", "import-hf", at("exported"), str("--save=", at("more")), "--mtp_num_layers=7"}).err,
      "--mtp_num_layers=7, but the file has ");
}

TEST_F(MtpEndToEndTest, RejectsResumeWithoutMtp) {
  train("run", with_mtp());
  const Outcome outcome = run(pretrain("run", {"--model.position_embedding_type=rope"}));
  EXPECT_NE(outcome.code, 0);
  EXPECT_CONTAINS(outcome.err, "model.mtp_num_layers");
}

TEST_F(MtpEndToEndTest, RejectsStagesWithoutMtp) {
  const Outcome outcome =
      run(pretrain("run", with_mtp({"--dry_run", "--world_size=2", "--parallel.pipeline_model_parallel_size=2",
                                    "--parallel.pipeline_model_parallel_layout=Et|tL"})));
  EXPECT_NE(outcome.code, 0);
  EXPECT_CONTAINS(outcome.err, "it has 0 layers of multi-token prediction (m), but mtp_num_layers = 2");
}

}  // namespace
}  // namespace mcpp
