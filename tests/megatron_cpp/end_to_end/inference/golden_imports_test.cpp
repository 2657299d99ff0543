// Hugging Face models with special tokens and added tokens. tests/huggingface/imports.py wrote them and the answers of
// transformers and lm-evaluation-harness.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class GoldenImportsTest : public EndToEnd {
 protected:
  static Path golden(const std::string& name) { return test::golden_folder() / "imports" / name; }
  static Json json_of(const Path& file) { return Json::parse(read_text_file(file)); }
  static Json json_in(const std::string& text) { return Json::parse(text.substr(text.find('{'))); }
  static std::string ids_text(const std::vector<i32>& ids) {
    std::vector<std::string> words;
    for (const i32 id : ids) words.push_back(str(id));
    return join(words, " ");
  }
  std::string import(const std::string& name) const {
    run_ok({"checkpoint", "import-hf", golden(name).string(), "--save=" + at(name)});
    return at(name);
  }
  /// Copies a golden model for modification.
  Path copy_of(const std::string& name, const std::string& to) const {
    std::filesystem::copy(golden(name), folder_ / to);
    return folder_ / to;
  }
  void expect_import_refused(const Path& folder, const std::string& part) const {
    const Outcome outcome = run({"checkpoint", "import-hf", folder.string(), "--save=" + at("refused")});
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, part);
  }
};

constexpr std::array kNames{"llama_chat_Llama", "gemma_Gemma2", "pair_GPT2"};

TEST_F(GoldenImportsTest, EncodesLikeTransformers) {
  for (const std::string name : kNames) {
    const Json expected = json_of(golden(name) / "expected.json");
    const Path file = golden(name) / (name.starts_with("pair") ? "vocab.json" : "tokenizer.model");
    for (std::size_t i = 0; i < expected["prompts"].size(); ++i) {
      const std::string text = expected["prompts"][i];
      EXPECT_EQ(run_ok({"tokenizer", "encode", "--model=" + file.string(), "--text=" + text}),
                ids_text(expected["ids"][i]) + "\n")
          << name << ": " << text;
    }
  }
}

TEST_F(GoldenImportsTest, GeneratesLikeTransformers) {
  for (const std::string name : kNames) {
    const std::string run = import(name), model = "--model=" + run + "/tokenizer.model";
    const Json expected = json_of(golden(name) / "expected.json");
    for (std::size_t i = 0; i < expected["prompts"].size(); ++i) {
      const std::string prompt = expected["prompts"][i];
      std::vector<i32> ids = expected["generated"][i];
      const std::vector<i32> stop = expected["stop"];
      if (std::ranges::count(stop, ids.back()) > 0) ids.pop_back();
      const std::string all = run_ok({"tokenizer", "decode", model, "--text=" + ids_text(ids)}),
                        start = run_ok({"tokenizer", "decode", model, "--text=" + ids_text(expected["ids"][i])});
      const std::string text = run_ok({"generate", "--load=" + run, "--prompt=" + prompt, "--temperature=0",
                                       str("--max_new_tokens=", expected["new_tokens"].get<i64>())});
      EXPECT_EQ(text.substr(prompt.size()), all.substr(start.size()) + "\n") << name << ": " << prompt;
    }
  }
}

TEST_F(GoldenImportsTest, EvaluatesLikeTransformersAndLmEval) {
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const std::string run = import(name);
    const Json expected = json_of(golden(name) / "expected.json");
    write_file_atomic(folder_ / "text.txt", expected["text"].get<std::string>());
    const Json found = json_in(run_ok({"evaluate", "--load=" + run, "--text=" + at("text.txt"), "--json",
                                       str("--window=", expected["window"].get<i64>())}));
    EXPECT_NEAR(found["loss"].get<double>() / expected["loss"].get<double>(), 1, 1e-5);
    std::string tasks;
    for (const Json& pair : expected["pairs"])
      tasks += Json{{"context", pair[0]}, {"continuations", {pair[1]}}, {"target_delimiter", ""}}.dump() + "\n";
    write_file_atomic(folder_ / "pairs.jsonl", tasks);
    run_ok({"evaluate", "--load=" + run, "--tasks=" + at("pairs.jsonl"), "--log_samples=" + at("samples.jsonl")});
    std::ifstream samples(at("samples.jsonl"));
    std::size_t count = 0;
    for (std::string line; std::getline(samples, line); ++count) {
      const double expected_likelihood = expected["likelihoods"][count];
      EXPECT_NEAR(Json::parse(line)["log_likelihoods"][0].get<double>(), expected_likelihood,
                  1e-4 * std::max(1.0, -expected_likelihood))
          << line;
    }
    EXPECT_EQ(count, expected["likelihoods"].size());
  }
}

TEST_F(GoldenImportsTest, ExportKeepsTokenConfiguration) {
  const std::string name = "llama_chat_Llama", run = import(name);
  const auto expect_token_config = [&](const Path& folder) {
    const Json config = json_of(folder / "config.json"), tokenizer = json_of(folder / "tokenizer_config.json"),
               original = json_of(golden(name) / "config.json"),
               stated = json_of(golden(name) / "tokenizer_config.json");
    for (const char* key : {"bos_token_id", "eos_token_id"}) EXPECT_EQ(config[key], original[key]) << key;
    for (const char* key : {"bos_token", "eos_token", "chat_template", "add_bos_token"})
      EXPECT_EQ(tokenizer[key], stated[key]) << key;
    EXPECT_EQ(json_of(folder / "generation_config.json"), json_of(golden(name) / "generation_config.json"));
    EXPECT_EQ(json_of(folder / "tokenizer.json")["post_processor"]["type"], "TemplateProcessing");
  };
  run_ok({"checkpoint", "export-hf", run, at("exported")});
  expect_token_config(folder_ / "exported");
  // A finetuned model keeps the token configuration of its base model.
  const std::string model = run_ok({"checkpoint", "show", run, "--toml"});
  write_file_atomic(folder_ / "run.toml", model);
  run_ok({"pretrain", at("run.toml"), "--data.mock_data", "--data.tokenizer_model=" + run + "/tokenizer.model",
          "--checkpoint.load=" + run, "--checkpoint.finetune", "--checkpoint.save=" + at("tuned"),
          "--training.train_iters=2", "--training.global_batch_size=1", "--training.eval_iters=0",
          "--device.num_threads=1"});
  run_ok({"checkpoint", "export-hf", at("tuned"), at("exported_tuned")});
  expect_token_config(folder_ / "exported_tuned");
}

TEST_F(GoldenImportsTest, SamplesFromPromptsWithBosToken) {
  const std::string model = import("llama_chat_Llama"), tokenizer = model + "/tokenizer.model";
  std::string prompt;
  for (int i = 0; i < 500; ++i) prompt += "hear me speak ";
  const std::string ids = run_ok({"tokenizer", "encode", "--model=" + tokenizer, "--text=" + prompt});
  const auto count = static_cast<i64>(split(ids, ' ').size());
  write_file_atomic(folder_ / "run.toml", run_ok({"checkpoint", "show", model, "--toml"}));
  const Outcome outcome =
      run({"pretrain", at("run.toml"), "--data.mock_data", "--data.tokenizer_model=" + tokenizer,
           "--checkpoint.load=" + model, "--checkpoint.finetune", "--checkpoint.save=" + at("tuned"),
           "--training.train_iters=2", "--training.global_batch_size=1", "--training.eval_iters=1",
           "--training.eval_interval=1", "--device.num_threads=1", "--logging.sample_prompt=" + prompt});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, str("logging.sample_prompt: has ", count + 1, " tokens")) << "one more is the bos token";
}

TEST_F(GoldenImportsTest, RefusesToSaveIntoModelFolder) {
  const std::string model = copy_of("llama_chat_Llama", "model").string(),
                    part = model + ": holds a Hugging Face model";
  const std::string tokenizer = read_text_file(model + "/tokenizer.model");
  for (const Strings& words : {Strings{"checkpoint", "import-hf", model, "--save=" + model}, pretrain("model"),
                               pretrain("model", {"--dry_run"})}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words[0];
    EXPECT_CONTAINS(outcome.err, part);
  }
  EXPECT_EQ(read_text_file(model + "/tokenizer.model"), tokenizer);
}

TEST_F(GoldenImportsTest, RejectsInvalidWindowAndStride) {
  const std::string run = import("pair_GPT2");
  write_file_atomic(folder_ / "text.txt", "First Citizen: hear me speak.");
  const auto refused = [&](const Strings& more, const std::string& part) {
    Strings words{"evaluate", "--load=" + run, "--text=" + at("text.txt")};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = EndToEnd::run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, part);
  };
  refused({"--window=65"}, "--window: 65 is above the model's seq_length 64");
  refused({"--window=-1"}, "window");
  refused({"--window=8", "--stride=9"}, "--stride: 9 is above the window of 8 (--window)");
  refused({"--stride=65"}, "--stride: 65 is above the window of 64 (the model's seq_length)");
}

TEST_F(GoldenImportsTest, RejectsUnsupportedTokens) {
  const auto change = [&](const Path& file, const std::function<void(Json&)>& edit) {
    Json json = json_of(file);
    edit(json);
    write_file_atomic(file, json.dump());
  };
  const Path other = copy_of("llama_chat_Llama", "other");
  change(other / "tokenizer_config.json", [](Json& json) { json["tokenizer_class"] = "T5Tokenizer"; });
  expect_import_refused(other, "how T5Tokenizer reads texts around them is unknown");
  const Path hole = copy_of("llama_chat_Llama", "hole");
  change(hole / "tokenizer_config.json", [](Json& json) {
    json["added_tokens_decoder"]["425"] = json["added_tokens_decoder"]["420"];
    json["added_tokens_decoder"]["425"]["content"] = "<|far|>";
  });
  expect_import_refused(hole, "the token \"<|far|>\" has the id 425, and transformers gives it 422");
  const Path taken = copy_of("pair_GPT2", "taken");
  write_file_atomic(taken / "added_tokens.json", "{\"<|im_end|>\": 7}");
  expect_import_refused(taken, "the token \"<|im_end|>\" has the id 7, and transformers gives it 400");
  const Path text = copy_of("llama_chat_Llama", "text");
  change(text / "generation_config.json", [](Json& json) { json["eos_token_id"] = "two"; });
  expect_import_refused(text, "'eos_token_id' is \"two\"; it must be a token id, a list of token ids, or null");
  const Path missing = copy_of("llama_chat_Llama", "missing");
  change(missing / "tokenizer_config.json", [](Json& json) { json["bos_token"] = "<none>"; });
  expect_import_refused(missing, "'bos_token' is \"<none>\", which the tokenizer does not have");
}

TEST_F(GoldenImportsTest, LogsWeightFileThatIsReadWhenTwoExist) {
  const Path both = copy_of("pair_GPT2", "both");
  write_file_atomic(both / "model.safetensors.index.json", R"({"weight_map":{"wte.weight":"missing.safetensors"}})");
  const Outcome outcome = run({"checkpoint", "import-hf", both.string(), "--save=" + at("run")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.err + outcome.out, "the weights are read from model.safetensors, as in transformers");
}

}  // namespace
}  // namespace mcpp
