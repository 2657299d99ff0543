#include "data/preprocess/conversation.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/checksum.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/preprocess/input_format.h"
#include "data/preprocess/text_source.h"

namespace mcpp {
namespace {

constexpr const char *kConfig = "tokenizer_config.json", *kTemplateFile = "chat_template.jinja";

Path folder_of(const Path& file) {
  return file.has_parent_path() ? file.parent_path() : Path(".");
}

/// Returns tokenizer_config.json of a folder; an empty object if there is none.
Json read_config(const Path& folder) {
  const Path path = folder / kConfig;
  if (!std::filesystem::exists(path)) return Json::object();
  Json config = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  check_input(config.is_object(), path.string(), ": is not a JSON object");
  return config;
}

/// Returns the template in tokenizer_config.json: a text, or a list of named texts; "" if there is none.
std::string template_in(const Json& config, const std::string& source) {
  const Json stated = config.value("chat_template", Json());
  if (stated.is_null()) return "";
  if (stated.is_string()) return stated.get<std::string>();
  check_input(stated.is_array(), source, ": 'chat_template' is neither a string nor a list");
  std::vector<std::string> names;
  for (const Json& entry : stated) {
    const bool is_named =
        entry.is_object() && entry.value("name", Json()).is_string() && entry.value("template", Json()).is_string();
    check_input(is_named, source, ": 'chat_template' has an entry without 'name' and 'template'");
    if (entry["name"] == "default") return entry["template"].get<std::string>();
    names.push_back(entry["name"].get<std::string>());
  }
  fail(ExitCode::BadInput, source, ": 'chat_template' has no entry \"default\", only ", join(names, ", "),
       "; write the one to use to a file, and pass it as --chat_template");
}

/// Returns the text of a token, which is stated as text or as an object; "" if it is not stated.
std::string token_text(const Json& config, const std::string& key) {
  const Json stated = config.value(key, Json());
  if (stated.is_string()) return stated.get<std::string>();
  if (stated.is_object() && stated.value("content", Json()).is_string()) return stated["content"].get<std::string>();
  return "";
}

/// Returns the tokens of tokenizer_config.json that occur in the template.
std::vector<std::string> controls_in(const Json& config, const std::string& source, const jinja::Dict& special) {
  std::vector<std::string> controls;
  for (const auto& [name, token] : special.members)
    if (source.find(name) != std::string::npos) controls.push_back(token.text());
  const Json added = config.value("added_tokens_decoder", Json::object());
  if (!added.is_object()) return controls;
  for (const Json& token : added) {
    const std::string text = token.is_object() ? token_text(Json{{"token", token}}, "token") : "";
    if (!text.empty() && source.find(text) != std::string::npos) controls.push_back(text);
  }
  return controls;
}

jinja::Value variable(const OrderedJson& object, const char* name) {
  return object.contains(name) ? jinja::Value::of_json(object[name]) : jinja::Value();
}

void check_messages(const OrderedJson& messages, const char* key) {
  check_input(messages.is_array(), "\"", key, "\" is not a list of messages");
  check_input(!messages.empty(), "\"", key, "\" is an empty list; it needs at least one message");
  for (const OrderedJson& message : messages) {
    const bool has_role = message.is_object() && message.contains("role") && message["role"].is_string();
    check_input(has_role, "\"", key, "\" has a message without a \"role\"");
  }
}

}  // namespace

ChatTemplate read_chat_template(const Path& file, const Path& tokenizer) {
  const Path folder = folder_of(tokenizer);
  const Json config = read_config(folder);
  const std::string config_path = (folder / kConfig).string();
  std::string name = file.string(), source;
  if (file.empty()) {
    name = (folder / kTemplateFile).string();
    if (!std::filesystem::exists(name)) name.clear();
  }
  if (name.empty()) {
    name = config_path + ": 'chat_template'";
    source = template_in(config, config_path);
  } else {
    source = read_text_file(name);
  }
  check_input(!source.empty(), tokenizer.string(), ": has no chat template: there is neither ", kTemplateFile,
              " next to it nor 'chat_template' in ", kConfig, "; pass a file with a template as --chat_template");
  jinja::Dict special;
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const std::string text = token_text(config, key);
    if (!text.empty()) special.set(key, text);
    const bool is_null = config.contains(key) && config[key].is_null();  // then undefined, as in transformers
    const bool is_needed = (key == std::string_view("bos_token") || key == std::string_view("eos_token")) &&
                           source.find(key) != std::string::npos && !is_null;
    check_input(
        !text.empty() || !is_needed, name, ": uses ", key, ", which ", config_path,
        " does not state; copy that file of the model next to the tokenizer, or write the token into the template");
  }
  jinja::Template program(source, name);
  return {.source = source,
          .program = std::move(program),
          .special_tokens = special,
          .controls = controls_in(config, source, special)};
}

std::string chat_template_checksum(const ConversationFormat& format, const Path& tokenizer) {
  if (!format.has_template()) return "";
  const ChatTemplate found = read_chat_template(format.chat_template, tokenizer);
  return checksum_hex(found.source + jinja::Value(found.special_tokens).repr());
}

ConversationEncoder::ConversationEncoder(ConversationFormat format, StoredRef<Tokenizer> tokenizer)
    : format_(std::move(format)), tokenizer_(tokenizer) {
  if (!format_.has_template()) return;
  template_ = read_chat_template(format_.chat_template, tokenizer_.path());
  for (const std::string& token : template_->controls) {
    const std::vector<i32> ids = tokenizer_.encode(token, {.begins = false});
    check_input(ids.size() == 1 && tokenizer_.piece(ids[0]) == token, tokenizer_.path().string(),
                ": does not recognize the token \"", token, "\" of the chat template in a text, but reads it as ",
                ids.size(), " tokens; use the tokenizer.json of the model that the template is from");
  }
}

MaskedTokens ConversationEncoder::encode(std::string_view line, std::string& problem) const {
  try {
    const OrderedJson object = parse_data_line(line);
    check_input(object.is_object(), "not a JSON object; each line must be one");
    if (format_.content == JsonContent::PromptCompletion) return encode_completion(object);
    check_input(object.contains("messages"), "has no key \"messages\"");
    check_messages(object["messages"], "messages");
    return encode_messages(object, object["messages"], 0);
  } catch (const OrderedJson::exception& error) {
    problem = str("malformed JSON: ", error.what());
  } catch (const Error& error) {
    problem = error.what();
  }
  return {};
}

MaskedTokens ConversationEncoder::encode_completion(const OrderedJson& object) const {
  for (const char* key : {"prompt", "completion"}) check_input(object.contains(key), "has no key \"", key, "\"");
  const OrderedJson &prompt = object["prompt"], &completion = object["completion"];
  if (prompt.is_string() && completion.is_string()) {
    return encode_parts({{.text = prompt.get_ref<const std::string&>(), .is_target = false},
                         {.text = completion.get_ref<const std::string&>(), .is_target = true}},
                        /*is_eod_target=*/true);
  }
  check_input(prompt.is_array() && completion.is_array(),
              "\"prompt\" and \"completion\" must both be strings, or both be lists of messages");
  check_input(template_.has_value(), "\"prompt\" is a list of messages, which needs a --chat_template");
  check_messages(prompt, "prompt");
  check_messages(completion, "completion");
  OrderedJson messages = prompt;
  for (const OrderedJson& message : completion) messages.push_back(message);
  return encode_messages(object, messages, prompt.size());
}

/// Returns true for the variables of a template that preprocessing sets.
static bool is_reserved(const std::string& name) {
  return name == "messages" || name == "tools" || name == "documents" || name == "add_generation_prompt";
}

jinja::Rendering ConversationEncoder::render(const OrderedJson& object, const OrderedJson& messages, std::size_t count,
                                             bool adds_generation_prompt) const {
  jinja::Dict variables = template_->special_tokens;
  jinja::List first;
  for (std::size_t i = 0; i < count; ++i) first.push_back(jinja::Value::of_json(messages[i]));
  variables.set("messages", std::move(first));
  variables.set("tools", variable(object, "tools"));
  variables.set("documents", variable(object, "documents"));
  variables.set("add_generation_prompt", jinja::Value(adds_generation_prompt));
  if (object.contains("chat_template_kwargs")) {
    const OrderedJson& more = object["chat_template_kwargs"];
    check_input(more.is_object(), "\"chat_template_kwargs\" is not an object");
    for (const auto& [name, value] : more.items()) {
      check_input(!is_reserved(name), "\"chat_template_kwargs\" sets \"", name,
                  "\", which decides what the template renders; remove it");
      variables.set(name, jinja::Value::of_json(value));
    }
  }
  return template_->program.render(variables);
}

std::vector<std::pair<std::size_t, std::size_t>> ConversationEncoder::answers(const OrderedJson& object,
                                                                              const OrderedJson& messages,
                                                                              std::size_t first_target,
                                                                              const jinja::Rendering& whole) const {
  if (template_->program.marks_generation() && first_target == 0) return whole.generated;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (std::size_t i = first_target; i < messages.size(); ++i) {
    if (messages[i]["role"] != "assistant") continue;
    const bool is_last = i + 1 == messages.size(), has_prompt = first_target > 0;
    const std::string with = is_last ? whole.text : render(object, messages, i + 1, false).text;
    const char* const use_generation = "use a template with {% generation %}";  // which completions do not need
    check_input(
        whole.text.starts_with(with), "the chat template renders message ", i + 1,
        " differently when the conversation continues (for example, it removes reasoning from earlier answers), "
        "so that its tokens cannot be found; ",
        has_prompt ? "divide the completion, so that each line ends with the only answer of its completion"
                   : str("end the conversation with the only answer to be learned, as a prompt and a completion "
                         "(--json_content=prompt_completion), or ",
                         use_generation));
    const std::string before = render(object, messages, i, /*adds_generation_prompt=*/true).text;
    const bool adds_text = !with.starts_with(before) && with.starts_with(render(object, messages, i, false).text);
    check_input(!adds_text, "the chat template does not begin message ", i + 1,
                " with the text that it writes for add_generation_prompt (for example, with \"<think>\"), so that the "
                "tokens of the answer cannot be found; ",
                has_prompt ? "remove that text from the template" : use_generation);
    check_input(with.starts_with(before), "the chat template renders the messages before message ", i + 1,
                " differently when that message follows, so that its tokens cannot be found; ",
                has_prompt ? "use a template without this" : use_generation);
    ranges.emplace_back(before.size(), with.size());
  }
  return ranges;
}

MaskedTokens ConversationEncoder::encode_messages(const OrderedJson& object, const OrderedJson& messages,
                                                  std::size_t first_target) const {
  const jinja::Rendering whole = render(object, messages, messages.size(), false);
  const std::string_view text = whole.text;
  std::vector<Part> parts;
  std::size_t end = 0;
  for (const auto& [begin, next] : answers(object, messages, first_target, whole)) {
    parts.push_back({.text = text.substr(end, begin - end), .is_target = false});
    parts.push_back({.text = text.substr(begin, next - begin), .is_target = true});
    end = next;
  }
  parts.push_back({.text = text.substr(end), .is_target = false});
  return encode_parts(std::move(parts), /*is_eod_target=*/false);
}

/// Encodes the parts separately, as generation does with a prompt. The token that ends documents is not repeated.
MaskedTokens ConversationEncoder::encode_parts(std::vector<Part> parts, bool is_eod_target) const {
  std::erase_if(parts, [](const Part& part) { return part.text.empty(); });
  MaskedTokens result;
  std::string before;
  for (const Part& part : parts) {
    const bool is_last = &part == &parts.back();
    const std::vector<i32> ids =
        tokenizer_.encode(part.text, {.begins = before.empty(), .ends = is_last, .before = before});
    result.tokens.insert(result.tokens.end(), ids.begin(), ids.end());
    result.targets.resize(result.tokens.size(), part.is_target ? 1 : 0);
    result.bytes += std::ssize(part.text);
    before += part.text;
  }
  result.words = count_words(before);
  if (format_.append_eod && !result.tokens.empty() && result.tokens.back() != tokenizer_.eod()) {
    result.tokens.push_back(tokenizer_.eod());
    result.targets.push_back(is_eod_target ? 1 : 0);
  }
  return result;
}

bool ConversationEncoder::ends_documents_early() const {
  if (!template_) return false;
  const OrderedJson messages{{{"role", "user"}, {"content", "a"}},
                             {{"role", "assistant"}, {"content", "b"}},
                             {{"role", "user"}, {"content", "c"}},
                             {{"role", "assistant"}, {"content", "d"}}};
  try {
    const MaskedTokens probe = encode_messages({{"messages", messages}}, messages, 0);
    return std::ranges::count(probe.tokens, tokenizer_.eod()) > 1;
  } catch (const Error&) {
    return false;  // a template for other roles
  }
}

}  // namespace mcpp
