// Evaluation and generation with models that were trained with document keys follow the same rules.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

constexpr i32 kEod = 1, kVocab = 400;
constexpr i64 kSeqLength = 32;

/// Writes a dataset without a .json file, like Megatron-LM's, with `tokens` as one document.
void write_dataset(const Path& prefix, const std::vector<u16>& tokens) {
  std::string index("MMIDIDX\0\0", 9);
  const auto add = [&](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof value); };
  add(u64{1}), add(u8{8}), add(u64{1}), add(u64{2});
  add(static_cast<i32>(tokens.size())), add(i64{0}), add(i64{0}), add(i64{1});
  write_file_atomic(prefix.string() + ".idx", index);
  write_file_atomic(prefix.string() + ".bin",
                    std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(u16)));
}

/// Returns tokens with an end of document after every `document` of them, or without ends if it is 0. Each token
/// determines the next.
std::vector<u16> tokens_of(i64 count, i64 document) {
  std::vector<u16> tokens;
  for (i64 i = 0; i < count; ++i) {
    const bool ends = document > 0 && i % document == document - 1;
    tokens.push_back(static_cast<u16>(ends ? kEod : 10 + (i * i / 3 + i) % 380));
  }
  return tokens;
}

class DocumentRulesTest : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    write_dataset(folder_ / "train", tokens_of(20 * kSeqLength + 1, 9));
    write_dataset(folder_ / "valid", tokens_of(6 * kSeqLength + 1, 7));  // six full samples
    write_dataset(folder_ / "no_eod", tokens_of(6 * kSeqLength + 1, 0));
  }
  Strings with_keys(const std::string& valid, const Strings& keys) const {
    Strings words{"--data.data_path=",
                  "--data.split=969,30,1",
                  "--data.train_data_path=" + at("train"),
                  "--data.valid_data_path=" + at(valid),
                  "--data.full_validation",
                  "--data.eod_token=1",
                  "--training.train_iters=8",
                  "--training.eval_interval=8"};
    for (const std::string& key : keys) words.push_back(str("--data.", key, "=true"));
    return words;
  }
  double loss_of(const Strings& more) const {
    Strings words{"evaluate", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string text = run_ok(words);
    return Json::parse(text.substr(text.find('{')))["loss"];
  }
  double validation_loss(const std::string& save) const {
    const std::vector<Json> lines = records(save, "validation");
    EXPECT_FALSE(lines.empty());
    return lines.empty() ? 0 : lines.back()["lm_loss"].get<double>();
  }
};

TEST_F(DocumentRulesTest, EvaluateMatchesValidationLossOfTraining) {
  const std::vector<Strings> cases{{},
                                   {"reset_attention_mask"},
                                   {"reset_position_ids"},
                                   {"eod_mask_loss"},
                                   {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}};
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(join(cases[i], ", "));
    const std::string save = str("run", i);
    train(save, with_keys("valid", cases[i]));
    const double expected = validation_loss(save);
    EXPECT_NEAR(loss_of({"--load=" + at(save), "--data=" + at("valid")}) / expected, 1, 1e-6);
    EXPECT_NEAR(loss_of({"--load=" + at(save), "--data=" + at("valid"), "--micro_batch_size=1"}) / expected, 1, 1e-6);
  }
}

TEST_F(DocumentRulesTest, EvaluateIsIndependentOfLayout) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Strings keys{"reset_position_ids", "reset_attention_mask", "eod_mask_loss"};
  train("run", with_keys("valid", keys));
  const Strings one{"evaluate", "--json", "--load=" + at("run"), "--data=" + at("valid")};
  const double expected = loss_of({one[2], one[3]});
  for (const char* layout : {"--parallel.tensor_model_parallel_size=2", "--parallel.pipeline_model_parallel_size=2",
                             "--parallel.context_parallel_size=2"}) {
    SCOPED_TRACE(layout);
    const Outcome outcome = run_on(2, plus(one, layout));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NEAR(Json::parse(outcome.out.substr(outcome.out.find('{')))["loss"].get<double>() / expected, 1, 1e-6);
  }
}

TEST_F(DocumentRulesTest, GenerateIgnoresEarlierDocuments) {
  train("run", {"--data.reset_position_ids=true", "--data.reset_attention_mask=true"});
  train("plain");
  const auto text = [&](const std::string& save, const Strings& more) {
    Strings words{"generate",        "--load=" + at(save),  "--prompt=First Citizen",
                  "--num_samples=4", "--max_new_tokens=24", "--ignore_eod"};
    words.insert(words.end(), more.begin(), more.end());
    return run_ok(words);
  };
  // After an end of document the model sees the same context and positions as at the start of a text.
  EXPECT_EQ(text("run", {"--prepend_eod"}), text("run", {}));
  EXPECT_NE(text("plain", {"--prepend_eod"}), text("plain", {}));
}

TEST_F(DocumentRulesTest, RejectsDatasetsWithoutEod) {
  const std::string reason = "no_eod.bin: no document ends with data.eod_token = 1";
  for (const char* key : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}) {
    const Outcome outcome = run(pretrain("x", with_keys("no_eod", {key})));
    EXPECT_EQ(outcome.code, 2) << key;
    EXPECT_CONTAINS(outcome.err, reason);
  }
  train("plain", with_keys("no_eod", {}));
  train("run", with_keys("valid", {"reset_attention_mask"}));
  const Outcome outcome = run({"evaluate", "--load=" + at("run"), "--data=" + at("no_eod")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, reason);
}

}  // namespace
}  // namespace mcpp
