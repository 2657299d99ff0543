// Instruction data with loss masks. make_chat_golden.py generated the expected tokens with transformers.
#include "data/preprocess/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "base/strings.h"
#include "data/dataset/batch.h"
#include "data/dataset/datasets.h"
#include "data/dataset/loss_mask.h"
#include "data/preprocess/distributed/merge.h"
#include "data/preprocess/preprocess.h"
#include "data/preprocess/verify.h"
#include "tests/data/data_golden.h"

namespace mcpp {
namespace {

using test::input_error;
using test::ScratchFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = std::vector<i32>;

constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

class ConversationTest : public testing::Test {
 protected:
  ConversationTest() {
    write("tokenizer.json", test::tokenizer_with({"<|im_start|>", "<|im_end|>", "<|bos|>", "<|eot|>"}));
    write("tokenizer_config.json", Json{{"bos_token", "<|bos|>"}, {"eos_token", {{"content", "<|im_end|>"}}}}.dump());
    write("chat_template.jinja", kChatMl);
  }

  void write(const std::string& name, const std::string& text) const { write_file_atomic(folder_ / name, text); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  Tokenizer tokenizer() const { return Tokenizer(folder_ / "tokenizer.json"); }
  std::string open_error(const ConversationFormat& format = {.content = JsonContent::Messages}) const {
    const Tokenizer opened = tokenizer();
    return input_error([&] { ConversationEncoder(format, opened); });
  }
  /// Returns what is wrong with a line.
  std::string problem(const std::string& line, const ConversationFormat& format) const {
    const Tokenizer opened = tokenizer();
    std::string text;
    ConversationEncoder(format, opened).encode(line, text);
    return text;
  }

  static Json messages(const std::vector<std::pair<const char*, const char*>>& turns) {
    Json list = Json::array();
    for (const auto& [role, content] : turns) list.push_back({{"role", role}, {"content", content}});
    return list;
  }

  PreprocessOptions options(const std::string& input, const std::string& prefix,
                            JsonContent content = JsonContent::Messages) const {
    PreprocessOptions result;
    result.input = {at(input)};
    result.output_prefix = at(prefix);
    result.tokenizer_model = at("tokenizer.json");
    result.json_content = content;
    result.workers = 2;
    return result;
  }
  /// Writes conversations of different lengths. Returns the lines.
  std::string conversations(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      Json messages{{{"role", "user"}, {"content", str("Question ", i, "?")}},
                    {{"role", "assistant"},
                     {"content", str("Answer ", i * i, std::string(static_cast<std::size_t>(i % 9), '!'))}}};
      if (i % 3 == 0) messages.push_back({{"role", "user"}, {"content", "And?"}});
      lines += Json{{"messages", messages}}.dump() + "\n";
    }
    return lines;
  }

  ScratchFolder folder_;
};

TEST_F(ConversationTest, TokensAndMaskMatchTransformers) {
  const Tokenizer opened = tokenizer();
  i64 cases = 0, targets = 0;
  for (const std::string& line : split(read_text_file(test::golden_folder() / "chat/expected.jsonl"), '\n')) {
    if (line.empty()) continue;
    const OrderedJson golden = OrderedJson::parse(line);
    for (const char* key : {"marked", "template"}) {
      write("t.jinja", golden[key].get<std::string>());
      const ConversationEncoder encoder(
          {.content = JsonContent::Messages, .chat_template = at("t.jinja"), .append_eod = false}, opened);
      std::string problem;
      const MaskedTokens found = encoder.encode(OrderedJson{{"messages", golden["messages"]}}.dump(), problem);
      EXPECT_EQ(problem, "");
      EXPECT_EQ(found.tokens, golden["ids"].get<Tokens>()) << key << golden.dump();
      EXPECT_EQ(found.targets, golden["mask"].get<Tokens>()) << key << golden.dump();
      targets += std::ranges::count(found.targets, 1);
      ++cases;
    }
  }
  EXPECT_EQ(cases, 16);
  EXPECT_GT(targets, 100);
}

TEST_F(ConversationTest, CompletionHasLossAndEndsDocument) {
  const Tokenizer opened = tokenizer();
  const ConversationEncoder encoder({.content = JsonContent::PromptCompletion}, opened);
  std::string problem;
  const MaskedTokens found = encoder.encode(R"({"prompt": "the king", "completion": " is", "x": [NaN]})", problem);
  EXPECT_EQ(problem, "");
  Tokens expected = opened.encode("the king");
  const std::size_t prompt = expected.size();
  for (const i32 id : opened.encode(" is")) expected.push_back(id);
  expected.push_back(opened.eod());
  EXPECT_EQ(found.tokens, expected);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found.targets[i], i >= prompt ? 1 : 0) << i;
  EXPECT_EQ(found.bytes, 11);
  EXPECT_EQ(found.words, 3);
}

TEST_F(ConversationTest, LossIsOnlyOnMessagesOfCompletion) {
  const Tokenizer opened = tokenizer();
  const ConversationEncoder encoder(
      {.content = JsonContent::PromptCompletion, .chat_template = at("chat_template.jinja")}, opened);
  std::string problem;
  const Json line{{"prompt", messages({{"user", "a"}, {"assistant", "b"}, {"user", "c"}})},
                  {"completion", messages({{"assistant", "d"}})}};
  const MaskedTokens found = encoder.encode(line.dump(), problem);
  EXPECT_EQ(problem, "");
  Tokens targets;
  for (std::size_t i = 0; i < found.tokens.size(); ++i)
    if (found.targets[i] == 1) targets.push_back(found.tokens[i]);
  EXPECT_EQ(targets, opened.encode("d<|im_end|>\n"));
  EXPECT_EQ(found.tokens.back(), opened.eod());
}

TEST_F(ConversationTest, ReportsWhatIsWrongWithLine) {
  const ConversationFormat messages{.content = JsonContent::Messages}, pair{.content = JsonContent::PromptCompletion};
  const std::tuple<const char*, ConversationFormat, const char*> cases[]{
      {"[1]", messages, "not a JSON object"},
      {"{\"messages\": ", messages, "malformed JSON"},
      {"{\"text\": \"a\"}", messages, "has no key \"messages\""},
      {"{\"messages\": \"a\"}", messages, "\"messages\" is not a list of messages"},
      {"{\"messages\": []}", messages, "\"messages\" is an empty list"},
      {"{\"messages\": [{\"content\": \"a\"}]}", messages, "has a message without a \"role\""},
      {"{\"messages\": [{\"role\": \"user\"}]}", messages,
       "chat_template.jinja: line 1: 'content' of a dict is undefined"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", messages, "unsupported operands of +"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template_kwargs\": 1}", messages,
       "\"chat_template_kwargs\" is not an object"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], "
       "\"chat_template_kwargs\": {\"add_generation_prompt\": true}}",
       messages, "\"chat_template_kwargs\" sets \"add_generation_prompt\""},
      {"{\"prompt\": \"a\"}", pair, "has no key \"completion\""},
      {"{\"prompt\": \"a\", \"completion\": 1}", pair, "must both be strings, or both be lists of messages"},
      {"{\"prompt\": [], \"completion\": []}", pair, "needs a --chat_template"}};
  for (const auto& [line, format, expected] : cases) EXPECT_THAT(problem(line, format), HasSubstr(expected)) << line;
}

TEST_F(ConversationTest, ReportsTemplateThatRewritesEarlierAnswers) {
  const std::string line =
      Json{{"messages", messages({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}})}}.dump();
  write("t.jinja",
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and loop.last %}<think>{% endif %}"
        "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  const ConversationFormat format{.content = JsonContent::Messages, .chat_template = at("t.jinja")};
  EXPECT_THAT(problem(line, format), HasSubstr("renders message 2 differently when the conversation continues"));
  write("t.jinja",
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% if loop.last %}<think>{% endif %}"
        "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_EQ(problem(line, format), "");
}

/// Each advice makes the line acceptable.
TEST_F(ConversationTest, AdvisesFixThatHelpsForEachTemplate) {
  const Json turns = messages({{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}});
  const ConversationFormat chat{.content = JsonContent::Messages, .chat_template = at("t.jinja")},
      completion{.content = JsonContent::PromptCompletion, .chat_template = at("t.jinja")};
  const auto whole = [&] { return problem(Json{{"messages", turns}}.dump(), chat); };
  const auto divided_at = [&](int prompt) {
    Json first = Json::array(), rest = Json::array();
    for (int i = 0; i < 4; ++i) (i < prompt ? first : rest).push_back(turns[static_cast<std::size_t>(i)]);
    return problem(Json{{"prompt", first}, {"completion", rest}}.dump(), completion);
  };
  // Reasoning of earlier answers is removed.
  write("t.jinja",
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' and loop.last %}<think>{% endif %}"
        "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_THAT(whole(), HasSubstr("as a prompt and a completion (--json_content=prompt_completion), or use a template"));
  EXPECT_THAT(divided_at(1), HasSubstr("divide the completion"));
  EXPECT_EQ(divided_at(3), "");
  // The prompt for an answer has a text that answers do not have.
  write("t.jinja",
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:<think>{% endif %}");
  EXPECT_THAT(whole(), HasSubstr("does not begin message 2 with the text that it writes for add_generation_prompt"));
  EXPECT_THAT(whole(), HasSubstr("cannot be found; use a template with {% generation %}"));
  EXPECT_THAT(divided_at(3), HasSubstr("does not begin message 4 with the text"));
  EXPECT_THAT(divided_at(3), HasSubstr("remove that text from the template"));
  write("t.jinja",
        "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_EQ(divided_at(3), "");
  // The last question is marked.
  write("t.jinja",
        "{% for m in messages %}{% if m.role == 'user' and loop.last %}!{% endif %}{{ m.role }}:{{ m.content }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
  EXPECT_THAT(whole(), HasSubstr("renders the messages before message 2 differently when that message follows"));
  write("t.jinja",
        "{% for m in messages %}{% if m.role == 'user' and loop.last %}!{% endif %}{{ m.role }}:"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}");
  EXPECT_EQ(whole(), "");
}

TEST_F(ConversationTest, TokenStatedAsNullIsUndefined) {
  write("tokenizer_config.json", Json{{"bos_token", nullptr}, {"eos_token", "<|im_end|>"}}.dump());
  write("chat_template.jinja", str("{% if bos_token is defined %}{{ bos_token }}{% endif %}", kChatMl));
  EXPECT_EQ(open_error(), "");
}

TEST_F(ConversationTest, FindsTemplateNextToTokenizer) {
  EXPECT_EQ(open_error(), "");
  std::filesystem::remove(folder_ / "chat_template.jinja");
  EXPECT_THAT(open_error(),
              HasSubstr("tokenizer.json: has no chat template: there is neither chat_template.jinja next to "
                        "it nor 'chat_template' in tokenizer_config.json; pass a file"));
  const auto with_template = [&](const Json& value) {
    write("tokenizer_config.json", Json{{"bos_token", "<|bos|>"}, {"chat_template", value}}.dump());
    return open_error();
  };
  EXPECT_EQ(with_template(kChatMl), "");
  EXPECT_EQ(with_template({{{"name", "rag"}, {"template", "x"}}, {{"name", "default"}, {"template", kChatMl}}}), "");
  EXPECT_THAT(with_template({{{"name", "rag"}, {"template", "x"}}}), HasSubstr("has no entry \"default\", only rag"));
  EXPECT_THAT(with_template(5), HasSubstr("'chat_template' is neither a string nor a list"));
  EXPECT_THAT(with_template("{% include 'x' %}"),
              HasSubstr("tokenizer_config.json: 'chat_template': line 1: the statement 'include' is not supported"));
  EXPECT_THAT(with_template("{{ eos_token }}"), HasSubstr("uses eos_token, which "));
  EXPECT_EQ(with_template("{{ bos_token }}"), "");
  write("tokenizer_config.json", Json{{"bos_token", "<none>"}, {"chat_template", "{{ bos_token }}"}}.dump());
  EXPECT_THAT(open_error(), HasSubstr("does not recognize the token \"<none>\" of the chat template in a text"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(open_error(), HasSubstr("tokenizer_config.json: is not a JSON object"));
}

TEST_F(ConversationTest, WarnsAboutTemplateThatEndsDocumentsEarly) {
  const Tokenizer opened = tokenizer();
  const auto ends_early = [&](const char* source) {
    write("t.jinja", source);
    return ConversationEncoder({.content = JsonContent::Messages, .chat_template = at("t.jinja")}, opened)
        .ends_documents_early();
  };
  EXPECT_FALSE(ends_early(kChatMl));
  EXPECT_TRUE(ends_early("{% for m in messages %}{{ m.content + '<|endoftext|>' }}{% endfor %}"));
  EXPECT_FALSE(ends_early("{% for m in messages %}{{ m.content }}{% endfor %}<|endoftext|>"));
}

TEST_F(ConversationTest, WrittenDatasetHasMaskOfEachToken) {
  write("in.jsonl", conversations(40));
  const PreprocessResult result = run_preprocess(options("in.jsonl", "d"), Log(1));
  ASSERT_EQ(result.outputs.size(), 2u);
  const std::string prefix = at("d_messages_document");
  EXPECT_EQ(result.outputs[0].prefix, prefix + "_loss_mask");
  EXPECT_EQ(result.outputs[1].prefix, prefix);
  EXPECT_TRUE(result.outputs[0].is_loss_mask);
  EXPECT_FALSE(result.outputs[1].is_loss_mask);
  const IndexedDataset tokens(prefix), mask(prefix + "_loss_mask");
  EXPECT_EQ(tokens.num_documents(), 40);
  const Tokenizer opened = tokenizer();
  const ConversationEncoder encoder({.content = JsonContent::Messages}, opened);
  i64 document = 0, targets = 0;
  for (const std::string& line : split(conversations(40), '\n')) {
    if (line.empty()) continue;
    std::string problem;
    const MaskedTokens expected = encoder.encode(line, problem);
    Tokens found(expected.tokens.size()), found_mask(expected.tokens.size());
    ASSERT_EQ(tokens.length(document), std::ssize(found));
    tokens.read(document, 0, found);
    mask.read(document, 0, found_mask);
    EXPECT_EQ(found, expected.tokens);
    EXPECT_EQ(found_mask, expected.targets);
    targets += std::ranges::count(found_mask, 1);
    ++document;
  }
  const DatasetSummary summary = verify_dataset(prefix, 0, Log(1));
  EXPECT_EQ(summary.targets, targets);
  EXPECT_EQ(summary.documents_with_eod, 40);
  EXPECT_EQ(summary.info->targets, targets);
  EXPECT_THAT(to_text(summary), HasSubstr(str("loss mask: ", targets, " of the tokens have a loss")));
}

TEST_F(ConversationTest, LabelsWithoutLossAreMinusOne) {
  write("in.jsonl", conversations(40));
  run_preprocess(options("in.jsonl", "d"), Log(1));
  DataConfig data;
  data.data_path = {at("d_messages_document")};
  data.split = "1";
  const Datasets datasets = build_train_valid_test_datasets(data, 24, 5, {30, 0, 0}, Log(1));
  const IndexedDataset mask(at("d_messages_document_loss_mask"));
  i64 masked = 0;
  for (i64 sample = 0; sample < 30; ++sample) {
    const std::vector<i64> one{sample};
    const Batch batch = read_batch(*datasets.train, one, 1000);
    Tokens expected;
    for (const SamplePart& part : datasets.train->origin(sample).parts) {
      Tokens values(static_cast<std::size_t>(part.length));
      mask.read(part.sequence, part.offset, values);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    Tokens row(25);
    datasets.train->at(sample, row);
    for (std::size_t i = 0; i < 24; ++i) {
      EXPECT_EQ(batch.tokens[i], row[i]);
      EXPECT_EQ(batch.labels[i], expected[i + 1] == 1 ? row[i + 1] : -1);
      masked += batch.labels[i] < 0;
    }
  }
  EXPECT_GT(masked, 100);
  const Tokenizer opened = tokenizer();
  EXPECT_THAT(to_text(show_sample(*datasets.train, 0, &opened)), HasSubstr(" of 25 tokens have a loss: "));
}

/// Fill in the middle must not move tokens away from their mask.
TEST_F(ConversationTest, FillInTheMiddleNamesDatasetsWithLossMask) {
  write("in.jsonl", conversations(40));
  run_preprocess(options("in.jsonl", "d"), Log(1));
  write("text.jsonl", Json{{"text", std::string(3000, 'x')}}.dump() + "\n");
  run_preprocess(options("text.jsonl", "e", JsonContent::Text), Log(1));
  const std::string masked = at("d_messages_document"), plain = at("e_text_document");
  const auto build = [&](const std::vector<std::string>& paths, double rate, std::string* log = nullptr) {
    DataConfig data;
    data.data_path = paths;
    data.split = "1";
    data.fim_rate = rate;
    if (rate > 0) {
      data.tokenizer_model = at("tokenizer.json");
      data.fim_prefix_token = "<|bos|>", data.fim_middle_token = "<|eot|>", data.fim_suffix_token = "<|im_end|>";
    }
    if (log) testing::internal::CaptureStderr();
    Datasets datasets = build_train_valid_test_datasets(data, 24, 5, {30, 0, 0}, Log(0));
    if (log) *log = testing::internal::GetCapturedStderr();
    return datasets;
  };
  const auto samples = [](const Datasets& datasets) {
    std::vector<Tokens> all;
    for (i64 i = 0; i < 30; ++i) datasets.train->at(i, all.emplace_back(25));
    return all;
  };
  const std::vector<std::string> blend{"0.5", masked, "0.5", plain};
  std::string warnings;
  const Datasets with_fim = build(blend, 1, &warnings), without = build(blend, 0);
  EXPECT_THAT(warnings, HasSubstr("data.fim_rate: does not apply to datasets with a loss mask: " + masked));
  EXPECT_THAT(warnings, testing::Not(HasSubstr(plain + "\n")));
  i64 changed = 0;
  for (i64 i = 0; i < 30; ++i) {
    const bool is_plain = with_fim.train->origin(i).is_rearranged;
    const bool is_equal =
        samples(with_fim)[static_cast<std::size_t>(i)] == samples(without)[static_cast<std::size_t>(i)];
    EXPECT_TRUE(is_plain || is_equal) << i;
    changed += is_equal ? 0 : 1;
  }
  EXPECT_GT(changed, 5);
  EXPECT_THAT(input_error([&] { build({masked}, 1); }),
              HasSubstr("data.fim_rate: has no effect, because all training datasets have a loss mask, which would not "
                        "fit rearranged text: " +
                        masked));
}

TEST_F(ConversationTest, ReportsInputWithoutConversationsByItsFile) {
  write("empty.jsonl", "");
  write("blank.jsonl", "\n\n");
  for (const char* name : {"empty.jsonl", "blank.jsonl"})
    EXPECT_THAT(input_error([&] { run_preprocess(options(name, "d"), Log(1)); }),
                testing::AllOf(HasSubstr(at(name) + ": the input has no conversations"),
                               testing::Not(HasSubstr("_loss_mask"))));
  write("users.jsonl", Json{{"messages", messages({{"user", "a"}})}}.dump() + "\n");
  EXPECT_THAT(input_error([&] { run_preprocess(options("users.jsonl", "d"), Log(1)); }),
              HasSubstr(at("users.jsonl") + ": none of the tokens has a loss"));
}

TEST_F(ConversationTest, MergedDatasetIsThatOfAllLines) {
  const std::string lines = conversations(30);
  const std::size_t middle = lines.find('\n', lines.size() / 2) + 1;
  write("a.jsonl", lines.substr(0, middle));
  write("b.jsonl", lines.substr(middle));
  write("all.jsonl", lines);
  for (const char* name : {"a", "b", "all"}) run_preprocess(options(str(name, ".jsonl"), name), Log(1));
  merge_datasets({at("a_messages_document"), at("b_messages_document")}, at("joined"), Log(1));
  for (const char* mask : {"", "_loss_mask"}) {
    for (const char* ending : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(read_text_file(at(str("joined", mask, ending))),
                read_text_file(at(str("all_messages_document", mask, ending))))
          << mask << ending;
    }
  }
  write("c.jsonl", "{\"text\": \"plain\"}\n");
  run_preprocess(options("c.jsonl", "c", JsonContent::Text), Log(1));
  const std::vector<std::string> different{at("a_messages_document"), at("c_text_document")};
  EXPECT_THAT(input_error([&] { merge_datasets(different, at("x"), Log(1)); }), HasSubstr("has no loss mask"));
}

TEST_F(ConversationTest, ReportsDamagedMask) {
  write("in.jsonl", conversations(40));
  run_preprocess(options("in.jsonl", "d"), Log(1));
  const std::string prefix = at("d_messages_document"), mask = prefix + "_loss_mask";
  DataConfig data;
  data.data_path = {prefix};
  data.split = "1";
  const auto build = [&] { return build_train_valid_test_datasets(data, 24, 5, {30, 0, 0}, Log(1)); };
  const std::string identity = dataset_identity(prefix), bytes = read_text_file(mask + ".bin");
  std::string damaged = bytes;
  damaged[damaged.size() / 2 / 2 * 2] = 7;
  write_file_atomic(mask + ".bin", damaged);
  EXPECT_NE(dataset_identity(prefix), identity);
  EXPECT_THAT(input_error([&] { verify_dataset(prefix, 0, Log(1)); }), HasSubstr("7 is neither 0 nor 1"));
  damaged = bytes;
  damaged[0] = static_cast<char>(1 - damaged[0]);
  write_file_atomic(mask + ".bin", damaged);
  EXPECT_THAT(input_error([&] { verify_dataset(prefix, 0, Log(1)); }),
              HasSubstr("tokens with a loss, but the loss mask has"));
  write("other.jsonl", conversations(41));
  run_preprocess(options("other.jsonl", "e"), Log(1));
  for (const char* ending : {".bin", ".idx"})
    std::filesystem::copy_file(at("e_messages_document_loss_mask") + ending, mask + ending,
                               std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(input_error(build), HasSubstr("the loss mask and the dataset do not belong together"));
  std::filesystem::remove(mask + ".idx");
  EXPECT_THAT(input_error(build), HasSubstr("_loss_mask.idx"));
}

TEST_F(ConversationTest, RejectsInputWithoutAnyTarget) {
  write("in.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  EXPECT_THAT(input_error([&] { run_preprocess(options("in.jsonl", "d"), Log(1)); }),
              HasSubstr("has a loss; the conversations have no message with the role \"assistant\""));
}

TEST_F(ConversationTest, RejectsOptionsWithoutEffectAndPlainText) {
  write("in.jsonl", conversations(4));
  PreprocessOptions o = options("in.jsonl", "d", JsonContent::Text);
  o.chat_template = "x";
  EXPECT_THAT(input_error([&] { run_preprocess(o, Log(1)); }), HasSubstr("--chat_template: applies only to"));
  o = options("in.jsonl", "d");
  o.json_keys = {"a"};
  EXPECT_THAT(input_error([&] { run_preprocess(o, Log(1)); }),
              HasSubstr("--json_keys: --json_content=messages reads fixed keys"));
  write("plain.txt", "text\n");
  EXPECT_THAT(input_error([&] { run_preprocess(options("plain.txt", "d"), Log(1)); }), HasSubstr("needs JSON lines"));
  write("in.jsonl", conversations(2) + "{\"messages\": 5}\n" + conversations(2));
  EXPECT_THAT(input_error([&] { run_preprocess(options("in.jsonl", "d"), Log(1)); }),
              HasSubstr("in.jsonl:3: \"messages\" is not a list of messages; fix the line, skip such lines with"));
  EXPECT_FALSE(std::filesystem::exists(at("d_messages_document.idx")));
  o = options("in.jsonl", "d");
  o.skip_malformed = true;
  EXPECT_EQ(run_preprocess(o, Log(1)).malformed_lines, 1);
}

}  // namespace
}  // namespace mcpp
