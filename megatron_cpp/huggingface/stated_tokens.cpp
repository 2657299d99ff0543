#include "megatron_cpp/huggingface/stated_tokens.h"

#include <algorithm>
#include <array>

namespace mcpp {
namespace {

constexpr std::array<const char*, 3> kConfigKeys{"bos_token_id", "eos_token_id", "pad_token_id"};
constexpr std::array<const char*, 12> kTokenizerKeys{"bos_token",
                                                     "eos_token",
                                                     "unk_token",
                                                     "pad_token",
                                                     "sep_token",
                                                     "cls_token",
                                                     "mask_token",
                                                     "additional_special_tokens",
                                                     "extra_special_tokens",
                                                     "chat_template",
                                                     "padding_side",
                                                     "add_eos_token"};

/// JSON file of a folder; an empty object if it does not exist.
struct StatedFile {
  StatedFile(const Path& folder, const char* name) : source((folder / name).string()) {
    if (std::filesystem::exists(folder / name)) json = parse_json(read_text_file(folder / name), source);
  }

  /// Returns the member, or null if it is absent.
  const Json& at(const char* key) const {
    static const Json none;
    const auto it = json.find(key);
    return it == json.end() ? none : *it;
  }
  bool has_key(const char* key) const { return json.contains(key); }

  std::string source;
  Json json = Json::object();
};

/// Returns one id or a list of ids. Omits ids outside of the vocabulary: transformers fills in defaults of other
/// models.
std::vector<i64> ids_of(const StatedFile& file, const char* key, i64 vocab_size) {
  const Json& value = file.at(key);
  std::vector<i64> ids;
  if (value.is_null()) return ids;
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    check_input(id.is_number_integer(), file.source, ": '", key, "' is ", value.dump(),
                "; it must be a token id, a list of such, or null");
    if (id.get<i64>() >= 0 && id.get<i64>() < vocab_size) ids.push_back(id.get<i64>());
  }
  return ids;
}

/// Returns the name of a token: a string, or an object with "content".
std::string token_name(const Json& value, const StatedFile& file, const char* key) {
  const bool is_object = value.is_object() && value.contains("content") && value["content"].is_string();
  check_input(value.is_string() || is_object, file.source, ": '", key, "' is ", value.dump(),
              "; it must be a token, an object with its 'content', or null");
  return is_object ? value["content"].get<std::string>() : value.get<std::string>();
}

/// Returns transformers' default token of a tokenizer class whose files state none; "" = none.
std::string_view default_token(const std::string& tokenizer_class, bool is_bos) {
  const auto is_class = [&](std::string_view name) { return tokenizer_class.starts_with(name); };
  if (is_class("LlamaTokenizer") || is_class("CodeLlamaTokenizer")) return is_bos ? "<s>" : "</s>";
  if (is_class("GemmaTokenizer")) return is_bos ? "<bos>" : "<eos>";
  if (is_class("GPT2Tokenizer") || is_class("GPTNeoXTokenizer")) return "<|endoftext|>";
  return is_class("Qwen2Tokenizer") && !is_bos ? "<|endoftext|>" : "";
}

/// Returns the id of bos_token or eos_token. The tokenizer's own statement takes precedence, even if null; without any,
/// the id in config.json is used.
std::optional<i64> id_of_token(const char* key, const StatedFile& tokenizer_config, const StatedFile& special_map,
                               const Tokenizer* tokenizer, const std::vector<i64>& config_ids) {
  const StatedFile* file = tokenizer_config.has_key(key) ? &tokenizer_config
                           : special_map.has_key(key)    ? &special_map
                                                         : nullptr;
  std::string name;
  const Json& type = tokenizer_config.at("tokenizer_class");
  if (file) {
    if (file->at(key).is_null()) return std::nullopt;
    name = token_name(file->at(key), *file, key);
  } else if (type.is_string()) {
    name = default_token(type.get<std::string>(), std::string_view(key) == "bos_token");
    if (name.empty()) return std::nullopt;
  }
  if (name.empty() || !tokenizer) return config_ids.empty() ? std::nullopt : std::optional(config_ids.front());
  const i32 id = tokenizer->id(name);
  check_input(id >= 0 || !file, file ? file->source : "", ": '", key, "' is \"", name,
              "\", which the tokenizer does not have");
  return id >= 0 ? std::optional<i64>(id) : std::nullopt;
}

/// Returns the id that a post-processor of `tokenizers` adds before a text, if any.
std::optional<i64> template_prefix(const Json& processor, const std::string& source) {
  if (!processor.is_object()) return std::nullopt;
  const JsonObject object(processor, source);
  if (object.find("processors")) {
    for (const Json& part : object.array("processors"))
      if (const auto id = template_prefix(part, source)) return id;
  }
  if (!object.find("single") || !object.array("single").is_array()) return std::nullopt;
  const Json& parts = object.array("single");
  if (parts.empty() || !parts[0].is_object() || !parts[0].contains("SpecialToken")) return std::nullopt;
  const std::string name = JsonObject(parts[0], source).object("SpecialToken").text("id");
  const std::vector<i64> ids = object.object("special_tokens").object(name).integers("ids", 16);
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

/// Sets adds_bos. If there is a tokenizer.json its template decides, and transformers ignores add_bos_token.
void read_adds_bos(const Path& folder, const StatedFile& tokenizer_config, i64 vocab_size, SpecialTokens& tokens) {
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    const StatedFile file(folder, "tokenizer.json");
    const std::optional<i64> prefix = template_prefix(file.at("post_processor"), file.source + ": 'post_processor'");
    tokens.adds_bos = prefix && *prefix < vocab_size;
    if (tokens.adds_bos) tokens.bos = prefix;
    return;
  }
  const Json& stated = tokenizer_config.at("add_bos_token");
  check_input(stated.is_null() || stated.is_boolean(), tokenizer_config.source, ": 'add_bos_token' is ", stated.dump(),
              "; it must be true or false");
  tokens.adds_bos = tokens.bos && stated.is_boolean() && stated.get<bool>();
}

template <std::size_t n>
OrderedJson members(const StatedFile& file, const std::array<const char*, n>& keys) {
  auto json = OrderedJson::object();
  for (const char* key : keys)
    if (file.has_key(key)) json[key] = file.at(key);
  return json;
}

}  // namespace

SpecialTokens read_stated_tokens(const Path& folder, const Tokenizer* tokenizer, i64 vocab_size) {
  const StatedFile config(folder, "config.json"), generation(folder, "generation_config.json"),
      tokenizer_config(folder, "tokenizer_config.json"), special_map(folder, "special_tokens_map.json");
  const std::vector<i64> config_bos = ids_of(config, "bos_token_id", vocab_size),
                         config_eos = ids_of(config, "eos_token_id", vocab_size);
  SpecialTokens tokens;
  tokens.bos = id_of_token("bos_token", tokenizer_config, special_map, tokenizer, config_bos);
  tokens.eos = id_of_token("eos_token", tokenizer_config, special_map, tokenizer, config_eos);
  tokens.stop = ids_of(generation, "eos_token_id", vocab_size);
  if (tokens.stop.empty()) tokens.stop = config_eos;
  read_adds_bos(folder, tokenizer_config, vocab_size, tokens);
  tokens.files["config.json"] = members(config, kConfigKeys).dump();
  if (!generation.json.empty()) tokens.files["generation_config.json"] = generation.json.dump();
  OrderedJson tokenizer_members = members(special_map, kTokenizerKeys);
  tokenizer_members.update(members(tokenizer_config, kTokenizerKeys));
  if (!tokenizer_members.empty()) tokens.files["tokenizer_config.json"] = tokenizer_members.dump();
  const Path chat_template = folder / "chat_template.jinja";
  if (std::filesystem::exists(chat_template)) tokens.files["chat_template.jinja"] = read_text_file(chat_template);
  return tokens;
}

OrderedJson stated_members(const SpecialTokens& tokens, const char* file) {
  const auto it = tokens.files.find(file);
  return it == tokens.files.end() ? OrderedJson::object() : OrderedJson::parse(it->second);
}

}  // namespace mcpp
