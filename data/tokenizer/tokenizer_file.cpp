#include "data/tokenizer/tokenizer_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/json.h"
#include "data/tokenizer/bpe/rank_files.h"
#include "data/tokenizer/bpe/tokenizer_json.h"
#include "data/tokenizer/bpe_coder.h"
#include "data/tokenizer/sentencepiece_coder.h"

namespace mcpp {
namespace {

constexpr const char *kConfig = "tokenizer_config.json", *kAdded = "added_tokens.json";
constexpr std::array<const char*, 7> kTokenKeys{"bos_token", "eos_token", "unk_token", "pad_token",
                                                "sep_token", "cls_token", "mask_token"};

bool flag(const JsonObject& object, const char* key, bool otherwise) {
  return object.find(key) ? object.boolean(key) : otherwise;
}

i32 id_of(const std::string& text, const std::string& source) {
  const bool is_number =
      !text.empty() && text.size() < 10 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  check_input(is_number, source, ": the key \"", text, "\" is not a token id");
  return std::stoi(text);
}

void read_decoder(const JsonObject& decoder, DeclaredTokens& declared) {
  for (const auto& member : decoder.json().items()) {
    const JsonObject object = decoder.object(member.key());
    AddedToken token{.id = id_of(member.key(), decoder.source()), .content = object.text("content")};
    token.single_word = flag(object, "single_word", false);
    token.lstrip = flag(object, "lstrip", false);
    token.rstrip = flag(object, "rstrip", false);
    token.special = flag(object, "special", false);
    token.normalized = flag(object, "normalized", !token.special);
    declared.added.push_back(std::move(token));
  }
}

/// Returns the tokens named by bos_token, eos_token and so on.
std::set<std::string> named_tokens(const JsonObject& config) {
  std::set<std::string> names;
  const auto add = [&](const Json& value) {
    if (value.is_string()) names.insert(value.get<std::string>());
    if (value.is_object() && value.contains("content") && value["content"].is_string())
      names.insert(value["content"].get<std::string>());
  };
  for (const char* key : kTokenKeys)
    if (const Json* value = config.find(key)) add(*value);
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = config.find(key);
    if (list && list->is_array()) std::ranges::for_each(*list, add);
  }
  return names;
}

void read_added(const JsonObject& added, const std::set<std::string>& special, DeclaredTokens& declared) {
  for (const auto& member : added.json().items()) {
    AddedToken token{.id = static_cast<i32>(added.integer(member.key(), 0, std::numeric_limits<i32>::max())),
                     .content = member.key()};
    token.special = special.contains(token.content);
    token.normalized = !token.special;
    declared.added.push_back(std::move(token));
  }
}

/// Returns true if the model itself recognizes this token in texts, or prevents texts from containing it.
bool has_token(const SentencepieceModel& model, const AddedToken& token) {
  const auto index = static_cast<std::size_t>(token.id);
  if (index >= model.pieces.size() || model.pieces[index].text != token.content) return false;
  const PieceType type = model.pieces[index].type;
  return type == PieceType::Control || type == PieceType::Unknown || type == PieceType::UserDefined;
}

/// Returns the model's own special tokens followed by `added`. Throws BadInput for an id that is already used, or that
/// leaves a gap.
std::vector<AddedToken> all_added(const SentencepieceModel& model, const DeclaredTokens& declared) {
  std::vector<AddedToken> tokens = declared.added;
  auto next = static_cast<i32>(model.pieces.size());
  for (const AddedToken& token : declared.added) {
    const auto same = std::ranges::find(model.pieces, token.content, &SentencePiece::text);
    const bool is_piece = same != model.pieces.end();
    check_input(is_piece ? same - model.pieces.begin() == token.id : token.id == next, declared.source,
                ": the token \"", token.content, "\" has the id ", token.id, ", and transformers gives it ",
                is_piece ? same - model.pieces.begin() : next);
    next += is_piece ? 0 : 1;
  }
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const bool is_special = piece.type == PieceType::Control || piece.type == PieceType::Unknown;
    const bool is_declared = std::ranges::count(declared.added, piece.text, &AddedToken::content) > 0;
    if (is_declared || (!is_special && piece.type != PieceType::UserDefined)) continue;
    tokens.push_back({.id = static_cast<i32>(id), .content = piece.text, .special = is_special});
  }
  std::ranges::stable_sort(tokens, {}, &AddedToken::id);
  return tokens;
}

/// Interpretation of a sentencepiece model by transformers: in a specific class, or by the model's settings.
enum class Reading { Llama, Gemma, Model };

/// Throws BadInput if transformers has a class that is unknown here.
Reading reading_of(const DeclaredTokens& declared, const std::string& what) {
  constexpr std::array<std::string_view, 5> kModelTypes{"mistral", "ministral", "mixtral", "phi3", "olmo2"};
  const std::string &type = declared.model_type, &name = declared.tokenizer_class;
  if (std::ranges::count(kModelTypes, type) > 0) return Reading::Model;
  const bool is_known =
      name.empty() || name == "PreTrainedTokenizer" || name == "LlamaTokenizer" || name == "GemmaTokenizer";
  check_input(is_known && !type.starts_with("qwen"), what, "how ", name.empty() ? type : name,
              " reads texts around them is unknown; save the tokenizer with transformers, which writes a "
              "tokenizer.json, and use that");
  const bool is_gemma = name == "GemmaTokenizer" || (name.empty() && type.starts_with("gemma"));
  return is_gemma ? Reading::Gemma : name == "LlamaTokenizer" ? Reading::Llama : Reading::Model;
}

using Merges = std::vector<std::pair<std::string_view, std::string_view>>;

/// Returns pairs that make a piece accepted by `is_merged`, ordered by the piece's id and then by the length of the
/// first part.
template <class F>
Merges merges_by_id(const SentencepieceModel& model, F&& is_merged) {
  std::set<std::string_view> pieces;
  for (const SentencePiece& piece : model.pieces)
    if (is_merged(piece)) pieces.insert(piece.text);
  Merges merges;
  for (const SentencePiece& piece : model.pieces) {
    const std::string_view text = piece.text;
    for (std::size_t at = 1; at < text.size() && is_merged(piece); ++at) {
      const std::string_view left = text.substr(0, at), right = text.substr(at);
      if (pieces.contains(left) && pieces.contains(right)) merges.emplace_back(left, right);
    }
  }
  return merges;
}

/// Returns the merges as in transformers: its classes merge all pieces by id and ignore the scores; otherwise normal
/// pieces merge by score.
Merges merges_of(const SentencepieceModel& model, Reading reading) {
  if (reading != Reading::Model) return merges_by_id(model, [](const SentencePiece&) { return true; });
  Merges merges = merges_by_id(model, [](const SentencePiece& piece) { return piece.type == PieceType::Normal; });
  std::map<std::string, std::pair<float, std::size_t>> ranks;
  for (std::size_t id = 0; id < model.pieces.size(); ++id)
    ranks.emplace(model.pieces[id].text, std::pair(-model.pieces[id].score, id));
  std::ranges::stable_sort(merges, {}, [&](const auto& merge) {
    return std::tuple(ranks.at(str(merge.first, merge.second)), merge.first, merge.second);
  });
  return merges;
}

OrderedJson bpe(const SentencepieceModel& model, Reading reading) {
  auto vocab = OrderedJson::object();
  OrderedJson unknown;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == PieceType::Unknown) unknown = model.pieces[id].text;
    vocab.get_ref<OrderedJson::object_t&>().emplace_back(model.pieces[id].text, id);
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", reading == Reading::Llama ? OrderedJson() : unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", true},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", merges_of(model, reading)}};
}

OrderedJson replace(const char* kind, std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
}

OrderedJson normalizer(const SentencepieceModel& model, const DeclaredTokens& declared, Reading reading) {
  if (reading == Reading::Llama) return {};
  const OrderedJson mark = replace("String", " ", kSpaceMark);
  if (reading == Reading::Gemma) return mark;
  auto steps = OrderedJson::array();
  if (model.remove_extra_whitespaces) {
    steps.push_back(replace("Regex", "\\A +| +\\z", ""));
    steps.push_back(replace("Regex", " {2,}", " "));
  }
  steps.push_back(mark);
  // Metaspace adds no mark before an existing mark, and sentencepiece does.
  if (model.add_dummy_prefix && declared.is_legacy.value_or(true))
    steps.push_back(replace("Regex", str("\\A", kSpaceMark), str(kSpaceMark, kSpaceMark)));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

/// Returns a pre-tokenizer that adds a mark before a text, or before each part of it between added tokens.
OrderedJson pre_tokenizer(const DeclaredTokens& declared, Reading reading, bool has_prefix) {
  if (reading == Reading::Gemma || (reading == Reading::Model && !has_prefix)) return {};
  const bool is_legacy = declared.is_legacy.value_or(reading == Reading::Model);
  const char* scheme = !has_prefix ? "never" : is_legacy ? "always" : "first";
  return {{"type", "Metaspace"}, {"replacement", kSpaceMark}, {"prepend_scheme", scheme}, {"split", false}};
}

OrderedJson decoder(bool drops_space) {
  auto steps = OrderedJson::array({replace("String", kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (drops_space) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

void check_representable(const SentencepieceModel& model, Reading reading, const std::string& what) {
  const auto count = [&](PieceType type) { return std::ranges::count(model.pieces, type, &SentencePiece::type); };
  check_input(count(PieceType::Byte) == 256, what,
              "it has no byte pieces, so characters that are not pieces cannot be encoded");
  std::set<std::string_view> names;
  for (const SentencePiece& piece : model.pieces)
    check_input(names.insert(piece.text).second, what, "it has the piece \"", piece.text, "\" twice");
  if (reading != Reading::Model) return;
  const char* kRemedy = "; save the tokenizer with transformers, which writes a tokenizer.json, and use that";
  check_input(model.type == SegmentationType::Bpe, what,
              "it is not of type bpe, the only type supported in a tokenizer.json", kRemedy);
  check_input(model.charsmap.empty(), what,
              "it replaces characters by a table, which is not supported in a tokenizer.json", kRemedy);
  check_input(count(PieceType::UserDefined) == 0, what, "it has user-defined pieces", kRemedy);
  check_input(model.escape_whitespaces && !model.treat_whitespace_as_suffix, what,
              "it does not represent spaces by U+2581 before words", kRemedy);
}

}  // namespace

DeclaredTokens read_declared_tokens(const Path& folder) {
  DeclaredTokens declared;
  const Path config_path = folder / kConfig, added_path = folder / kAdded;
  const auto parse = [](const Path& path) {
    return std::filesystem::exists(path) ? parse_json(read_text_file(path), path.string()) : Json::object();
  };
  const Json config_json = parse(config_path), added_json = parse(added_path);
  const JsonObject config(config_json, config_path.string());
  declared.source = config.source();
  const Json model_json = parse(folder / "config.json");
  if (model_json.contains("model_type") && model_json["model_type"].is_string())
    declared.model_type = model_json["model_type"].get<std::string>();
  if (config.find("tokenizer_class")) declared.tokenizer_class = config.text("tokenizer_class");
  if (declared.tokenizer_class.ends_with("Fast")) declared.tokenizer_class.resize(declared.tokenizer_class.size() - 4);
  if (config.find("legacy")) declared.is_legacy = config.boolean("legacy");
  declared.adds_prefix_space = flag(config, "add_prefix_space", true);
  if (config.find("added_tokens_decoder")) {
    read_decoder(config.object("added_tokens_decoder"), declared);
  } else if (!added_json.empty()) {
    declared.source = added_path.string();
    read_added({added_json, added_path.string()}, named_tokens(config), declared);
  }
  std::ranges::sort(declared.added, {}, &AddedToken::id);
  return declared;
}

void add_declared_tokens(const DeclaredTokens& declared, const std::string& source, BpeDescription& description) {
  for (const AddedToken& token : declared.added) {
    const auto known = std::ranges::find(description.added, token.content, &AddedToken::content);
    const auto piece = std::ranges::find(description.pieces, token.content);
    const bool is_piece = piece != description.pieces.end();
    const auto id = piece - description.pieces.begin();  // the next id if there is no such piece
    check_input(id == token.id, declared.source, ": the token \"", token.content, "\" has the id ", token.id,
                ", and transformers gives it ", id);
    if (!is_piece) add_piece(token.id, token.content, source, description);
    if (known != description.added.end())
      *known = token;
    else
      description.added.push_back(token);
    const auto added = std::ranges::find(description.added, token.content, &AddedToken::content);
    added->is_in_vocabulary = is_piece;
  }
}

std::optional<std::string> with_declared_tokens(const SentencepieceModel& model, const DeclaredTokens& declared,
                                                const std::string& source) {
  if (std::ranges::all_of(declared.added, [&](const AddedToken& token) { return has_token(model, token); })) return {};
  const std::string what = str("tokenizer model ", source, ": ", declared.source, " adds tokens to it, and ");
  const Reading reading = reading_of(declared, what);
  check_representable(model, reading, what);
  const bool has_prefix = reading == Reading::Llama   ? declared.adds_prefix_space
                          : reading == Reading::Gemma ? false
                                                      : model.add_dummy_prefix;
  std::vector<AddedToken> added = all_added(model, declared);
  for (AddedToken& token : added) token.normalized = token.normalized && !(reading == Reading::Model && has_prefix);
  const OrderedJson json{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added_tokens_json(added)},
                         {"normalizer", normalizer(model, declared, reading)},
                         {"pre_tokenizer", pre_tokenizer(declared, reading, has_prefix)},
                         {"post_processor", nullptr},
                         {"decoder", decoder(has_prefix)},
                         {"model", bpe(model, reading)}};
  return json.dump(1) + "\n";
}

namespace {

constexpr std::string_view kMergesHead = "#version";

std::string read_file(const Path& path) {
  std::error_code unknown;
  check_input(std::filesystem::is_symlink(path, unknown) || std::filesystem::exists(path, unknown), "tokenizer model ",
              path.string(), ": does not exist");
  return read_text_file(path);
}

/// Returns true for a vocab.json, which maps pieces to numbers; a tokenizer.json has objects, such as "model". Returns
/// false for text that is not valid JSON, such as a truncated file.
bool is_vocab_json(const std::string& content) {
  constexpr std::string_view kModel = "\"model\"";
  if (tokenizer_kind(content) != TokenizerKind::TokenizerJson) return false;
  for (std::size_t at = content.find(kModel); at != std::string::npos; at = content.find(kModel, at + 1)) {
    const std::size_t value = content.find_first_not_of(" \t\r\n:", at + kModel.size());
    if (value != std::string::npos && content[value] == '{') return false;
  }
  const auto keep_members = [](int depth, Json::parse_event_t, const Json&) { return depth <= 1; };
  const Json json = Json::parse(content, keep_members, /*allow_exceptions=*/false);
  return json.is_object() && std::ranges::any_of(json, [](const Json& member) { return member.is_number(); });
}

/// Returns vocab.json and merges.txt if `content`, the content of `path`, is one of these files.
std::optional<std::pair<Path, Path>> pair_of(const Path& path, const std::string& content) {
  if (content.starts_with(kMergesHead)) return std::pair(path.parent_path() / "vocab.json", path);
  if (is_vocab_json(content)) return std::pair(path, path.parent_path() / "merges.txt");
  return std::nullopt;
}

/// Returns true if a tokenizer.json in the same folder has the added tokens.
bool has_tokenizer_json(const Path& path) {
  return std::filesystem::exists(path.parent_path() / "tokenizer.json");
}

BpeDescription parse_pair(const std::pair<Path, Path>& pair, std::optional<PreTokenization> rules) {
  const auto& [vocab, merges] = pair;
  for (const Path& file : {vocab, merges}) {
    check_input(std::filesystem::exists(file), "tokenizer model ", file.string(),
                ": does not exist; vocab.json and merges.txt are required together");
  }
  BpeDescription description = parse_vocab_and_merges(read_file(vocab), read_file(merges), vocab.string(), rules);
  if (!has_tokenizer_json(vocab))
    add_declared_tokens(read_declared_tokens(vocab.parent_path()), vocab.string(), description);
  return description;
}

}  // namespace

TokenizerKind tokenizer_kind(std::string_view content) {
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && content[first] == '{') return TokenizerKind::TokenizerJson;
  return looks_like_ranks(content) ? TokenizerKind::Ranks : TokenizerKind::Sentencepiece;
}

std::string read_tokenizer_file(const Path& path) {
  std::string content = read_file(path);
  const auto pair = pair_of(path, content);
  if (pair) return to_tokenizer_json(parse_pair(*pair, {}));
  if (tokenizer_kind(content) != TokenizerKind::Sentencepiece || has_tokenizer_json(path)) return content;
  const DeclaredTokens declared = read_declared_tokens(path.parent_path());
  if (declared.added.empty()) return content;
  const SentencepieceModel model = parse_sentencepiece_model(content, path.string());
  return with_declared_tokens(model, declared, path.string()).value_or(std::move(content));
}

std::unique_ptr<TextCoder> make_text_coder(const std::string& content, const std::string& source) {
  const std::string name = "tokenizer model " + source;
  switch (tokenizer_kind(content)) {
    case TokenizerKind::TokenizerJson:
      return make_bpe_coder(parse_tokenizer_json(content, name), name);
    case TokenizerKind::Ranks:
      return make_bpe_coder(parse_ranks(content, name), name);
    case TokenizerKind::Sentencepiece:
      break;
  }
  return make_sentencepiece_coder(content, source);
}

Path find_tokenizer_file(const Path& folder) {
  const auto exists = [&](const char* name) { return std::filesystem::exists(folder / name); };
  const Path model = folder / "tokenizer.model", json = folder / "tokenizer.json";
  if (exists("tokenizer.model") && exists("tokenizer.json")) {
    const i64 pieces = make_text_coder(read_file(model), model.string())->vocab_size();
    return count_tokens(read_file(json), json.string()) > pieces ? json : model;
  }
  if (exists("tokenizer.model")) return model;
  if (exists("tokenizer.json")) return json;
  return exists("vocab.json") && exists("merges.txt") ? folder / "vocab.json" : Path();
}

std::string convert_to_tokenizer_json(const Path& path, std::optional<PreTokenization> rules) {
  const std::string content = read_file(path);
  if (const auto pair = pair_of(path, content)) return to_tokenizer_json(parse_pair(*pair, rules));
  check_input(tokenizer_kind(content) == TokenizerKind::Ranks, "tokenizer model ", path.string(),
              ": is neither a rank list nor a vocab.json with its merges.txt; other files need no conversion");
  return to_tokenizer_json(parse_ranks(content, "tokenizer model " + path.string(), rules));
}

}  // namespace mcpp
