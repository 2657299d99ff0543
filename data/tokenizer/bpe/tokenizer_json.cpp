#include "data/tokenizer/bpe/tokenizer_json.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/json.h"
#include "base/strings.h"
#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/bpe/regex.h"

namespace mcpp {
namespace {

// Limit on unused ids, so that a short file cannot exhaust the memory.
constexpr std::size_t kMaxUnused = 1'000'000;

}  // namespace

void add_piece(i64 id, const std::string& piece, const std::string& source, BpeDescription& description) {
  auto& pieces = description.pieces;
  const auto index = static_cast<std::size_t>(id);
  check_input(!piece.empty(), source, ": the piece of id ", id, " is empty");
  check_input(id >= 0 && index < pieces.size() + kMaxUnused, source, ": the id of \"", piece, "\" is ", id,
              ", which is far above all other ids");
  if (index >= pieces.size()) pieces.resize(index + 1);
  check_input(pieces[index].empty() || pieces[index] == piece, source, ": the id ", id, " belongs to two pieces, \"",
              pieces[index], "\" and \"", piece, "\"");
  pieces[index] = piece;
}

void read_pieces(const Json& vocab, const std::string& source, BpeDescription& description) {
  check_input(vocab.is_object() && !vocab.empty(), source, ": its vocabulary is not an object of pieces and ids");
  for (const auto& [piece, id] : vocab.items()) {
    check_input(id.is_number_unsigned() && id.get<u64>() < vocab.size() + kMaxUnused, source, ": the id of \"", piece,
                "\" is ", id.dump(), ", which is not a valid id");
    if (id.get<u64>() >= description.pieces.size()) description.pieces.resize(id.get<std::size_t>() + 1);
    add_piece(id.get<i64>(), piece, source, description);
  }
}

void check_no_holes(const BpeDescription& description, i64 end, const std::string& source) {
  for (i64 id = 0; id < end; ++id) {
    check_input(!description.pieces[static_cast<std::size_t>(id)].empty(), source, ": no piece has the id ", id,
                ", although larger ids are used");
  }
}

MergeReader::MergeReader(BpeDescription& description, const std::string& source)
    : description_(description), source_(source) {
  ids_.reserve(description.pieces.size());
  for (std::size_t id = 0; id < description.pieces.size(); ++id)
    if (!description.pieces[id].empty()) ids_.emplace(description.pieces[id], static_cast<u32>(id));
}

u32 MergeReader::id_of(const std::string& piece, const std::string& left, const std::string& right) const {
  const auto it = ids_.find(piece);
  check_input(it != ids_.end(), source_, ": merge ", description_.merges.size(), ", of \"", left, "\" and \"", right,
              "\", needs the piece \"", piece, "\", which is not in the vocabulary");
  return it->second;
}

void MergeReader::add(const std::string& left, const std::string& right) {
  const auto rank = static_cast<u32>(description_.merges.size());
  description_.merges.push_back(
      {id_of(left, left, right), id_of(right, left, right), rank, id_of(left + right, left, right)});
}

void MergeReader::add_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  check_input(space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                  line.find(' ', space + 1) == std::string_view::npos,
              source_, ": merge ", description_.merges.size(), " is not two pieces with a space between them: ", line);
  add(std::string(line.substr(0, space)), std::string(line.substr(space + 1)));
}

namespace {

/// Rejects unknown members, since ignoring them could give different ids.
void check_members(const JsonObject& object, const std::set<std::string>& known) {
  for (const auto& member : object.json().items()) {
    check_input(known.contains(member.key()), object.source(), ": '", member.key(),
                "' is not supported; supported: ", join(std::vector<std::string>(known.begin(), known.end()), ", "));
  }
}

[[noreturn]] void fail_unsupported(const JsonObject& object, const std::string& type, std::string_view known) {
  fail(ExitCode::BadInput, object.source(), ": ", type, " is not supported; supported: ", known);
}

bool flag(const JsonObject& object, const char* key, bool otherwise) {
  return object.find(key) ? object.boolean(key) : otherwise;
}

/// Returns true if the member is missing, null or "".
bool is_blank(const JsonObject& object, const char* key) {
  return !object.find(key) || object.text(key).empty();
}

JsonObject element(const Json& list, std::size_t i, const std::string& source) {
  return {list[i], str(source, "[", i, "]")};
}

/// Returns {"Regex": "..."} or {"String": "..."} as a regular expression.
std::string pattern_of(const JsonObject& step) {
  const JsonObject pattern = step.object("pattern");
  if (pattern.find("Regex")) return pattern.text("Regex");
  check_input(!is_blank(pattern, "String"), pattern.source(), ": has neither 'Regex' nor 'String'");
  return quoted_pattern(pattern.text("String"));
}

void read_normalizer(const JsonObject& step, BpeDescription& description) {
  auto& steps = description.normalizer;
  const std::string& type = step.text("type");
  if (type == "Sequence") {
    check_members(step, {"type", "normalizers"});
    const Json& list = step.array("normalizers");
    for (std::size_t i = 0; i < list.size(); ++i) read_normalizer(element(list, i, step.source()), description);
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeForm::Nfc);
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm::Nfd);
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm::Nfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm::Nfkd);
  } else if (type == "Prepend") {
    check_members(step, {"type", "prepend"});
    steps.emplace_back(PrependStep{step.text("prepend")});
  } else if (type == "Replace") {
    check_members(step, {"type", "pattern", "content"});
    steps.emplace_back(ReplaceStep{pattern_of(step), step.text("content")});
  } else {
    fail_unsupported(step, type, "NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence");
  }
}

SplitBehavior behavior_of(const JsonObject& step) {
  static const std::array<std::string, 5> names{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                "Contiguous"};
  const auto it = std::ranges::find(names, step.text("behavior"));
  if (it == names.end()) fail_unsupported(step, "the behavior " + step.text("behavior"), join(names, ", "));
  return static_cast<SplitBehavior>(it - names.begin());
}

void add_rule(BpeDescription& description, const std::string& rule) {
  description.rules += str(description.rules.empty() ? "" : ", ", rule);
}

void add_split(BpeDescription& description, SplitStep step) {
  std::string rule = step.pattern;
  for (const PreTokenization kind : {PreTokenization::Gpt2, PreTokenization::Llama3, PreTokenization::Qwen2,
                                     PreTokenization::Cl100k, PreTokenization::O200k}) {
    if (step.pattern == word_pattern(kind)) rule = enum_name(kind);
  }
  add_rule(description, rule);
  description.pre_tokenizer.emplace_back(std::move(step));
}

void read_byte_level(const JsonObject& step, BpeDescription& description) {
  check_members(step, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (flag(step, "add_prefix_space", true)) description.pre_tokenizer.emplace_back(PrefixStep{" ", false});
  if (flag(step, "use_regex", true)) add_split(description, {std::string(word_pattern(PreTokenization::Gpt2))});
  description.is_byte_level = true;
}

void read_metaspace(const JsonObject& step, BpeDescription& description) {
  check_members(step, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string& mark = step.text("replacement");
  const bool by_default = flag(step, "add_prefix_space", true);
  const std::string scheme = step.find("prepend_scheme") ? step.text("prepend_scheme")
                             : by_default                ? "always"
                                                         : "never";
  const bool is_known = scheme == "always" || scheme == "first" || scheme == "never";
  if (!is_known) fail_unsupported(step, "the prepend_scheme " + scheme, "always, first and never");
  description.pre_tokenizer.emplace_back(MarkStep{" ", mark});
  if (scheme != "never") description.pre_tokenizer.emplace_back(PrefixStep{mark, scheme == "first"});
  add_rule(description, "metaspace");
  if (flag(step, "split", true)) add_split(description, {quoted_pattern(mark), SplitBehavior::MergedWithNext, false});
}

void read_pre_tokenizer(const JsonObject& step, BpeDescription& description) {
  check_input(!description.is_byte_level, step.source(), ": comes after ByteLevel, which must be the last step");
  const std::string& type = step.text("type");
  if (type == "Sequence") {
    check_members(step, {"type", "pretokenizers"});
    const Json& list = step.array("pretokenizers");
    for (std::size_t i = 0; i < list.size(); ++i) read_pre_tokenizer(element(list, i, step.source()), description);
  } else if (type == "ByteLevel") {
    read_byte_level(step, description);
  } else if (type == "Split") {
    check_members(step, {"type", "pattern", "behavior", "invert"});
    add_split(description, {pattern_of(step), behavior_of(step), flag(step, "invert", false)});
  } else if (type == "Digits") {
    check_members(step, {"type", "individual_digits"});
    const bool individual = flag(step, "individual_digits", false);
    add_split(description,
              {individual ? "\\p{N}" : "\\p{N}+", individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous});
  } else if (type == "Punctuation") {
    check_members(step, {"type", "behavior"});
    add_split(description, {"[!-/:-@\\[-`{-~\\p{P}]", behavior_of(step)});
  } else if (type == "Metaspace") {
    read_metaspace(step, description);
  } else {
    fail_unsupported(step, type, "ByteLevel, Split, Digits, Punctuation, Metaspace and Sequence");
  }
}

/// Reads how a space is spelled and whether the first is removed. Everything else follows from the pieces.
void read_decoder(const JsonObject& decoder, BpeDescription& description) {
  const std::string& type = decoder.text("type");
  if (type == "Sequence") {
    const Json& list = decoder.array("decoders");
    for (std::size_t i = 0; i < list.size(); ++i) read_decoder(element(list, i, decoder.source()), description);
  } else if (type == "Strip") {
    check_input(decoder.text("content") == " " && decoder.integer("stop") == 0 && decoder.integer("start", 0, 1) >= 0,
                decoder.source(), ": only stripping of one space at the beginning is supported");
    description.drops_first_space |= decoder.integer("start") == 1;
  } else if (type == "Metaspace") {
    const bool by_default = flag(decoder, "add_prefix_space", true);
    description.space_mark = decoder.text("replacement");
    description.drops_first_space =
        decoder.find("prepend_scheme") ? decoder.text("prepend_scheme") != "never" : by_default;
  } else if (type == "Replace") {
    const JsonObject pattern = decoder.object("pattern");
    check_input(!is_blank(pattern, "String") && decoder.text("content") == " ", decoder.source(),
                ": only replacement by a space is supported");
    description.space_mark = pattern.text("String");
  } else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse") {
    fail_unsupported(decoder, type, "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence");
  }
}

/// Reads the tokens that the template adds before a single text. Its other parts do not change the ids of a text.
void read_post_processor(const JsonObject& processor, BpeDescription& description) {
  const std::string& type = processor.text("type");
  if (type == "Sequence") {
    const Json& list = processor.array("processors");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_post_processor(element(list, i, processor.source()), description);
  }
  if (type != "TemplateProcessing") return;
  const Json& parts = processor.array("single");
  for (std::size_t i = 0; i < parts.size() && parts[i].contains("SpecialToken"); ++i) {
    const std::string name = element(parts, i, processor.source()).object("SpecialToken").text("id");
    for (const i64 id : processor.object("special_tokens").object(name).integers("ids", 16))
      description.prefix_tokens.push_back(static_cast<i32>(std::min<i64>(id, std::numeric_limits<i32>::max())));
  }
}

void read_added_tokens(const Json& list, const std::string& source, BpeDescription& description) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const JsonObject object = element(list, i, str(source, ": 'added_tokens'"));
    check_members(object, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.content = object.text("content");
    token.id = static_cast<i32>(object.integer("id", 0, std::numeric_limits<i32>::max()));
    token.special = flag(object, "special", false);
    token.single_word = flag(object, "single_word", false);
    token.lstrip = flag(object, "lstrip", false);
    token.rstrip = flag(object, "rstrip", false);
    token.normalized = flag(object, "normalized", !token.special);
    const auto index = static_cast<std::size_t>(token.id);
    token.is_in_vocabulary = index < description.pieces.size() && description.pieces[index] == token.content;
    add_piece(token.id, token.content, source, description);
    description.added.push_back(std::move(token));
  }
}

void check_added_once(const BpeDescription& description, const std::string& source) {
  std::set<std::string_view> contents;
  for (const AddedToken& token : description.added)
    check_input(contents.insert(token.content).second, source, ": the added token \"", token.content,
                "\" is listed twice");
  for (std::size_t id = 0; id < description.pieces.size(); ++id) {
    const std::string& piece = description.pieces[id];
    const auto same = [&](const AddedToken& token) { return token.content == piece; };
    if (!contents.contains(piece)) continue;
    const i32 added = std::ranges::find_if(description.added, same)->id;
    check_input(added == static_cast<i32>(id), source, ": \"", piece, "\" has two ids, ", id, " and ", added);
  }
}

void read_merges(const Json& list, const std::string& source, BpeDescription& description) {
  MergeReader reader(description, source);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json& merge = list[i];
    if (merge.is_string()) {
      reader.add_line(merge.get_ref<const std::string&>());
      continue;
    }
    const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    check_input(is_pair, source, ": merge ", i, " is not a pair of pieces");
    reader.add(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
}

/// Reads the member "model" except for the vocabulary.
void read_model(const JsonObject& model, BpeDescription& description) {
  check_members(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"});
  check_input(!model.find("dropout") || model.number("dropout") == 0, model.source(),
              ": 'dropout' is not supported: the ids of a text would change at every call");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    check_input(is_blank(model, key), model.source(), ": '", key, "' is not supported");
  description.byte_fallback = flag(model, "byte_fallback", false);
  description.ignore_merges = flag(model, "ignore_merges", false);
  description.fuse_unknown = flag(model, "fuse_unk", false);
  read_pieces(model.at("vocab"), model.source(), description);
  if (is_blank(model, "unk_token")) return;
  const auto unknown = std::ranges::find(description.pieces, model.text("unk_token"));
  check_input(unknown != description.pieces.end() || description.is_byte_level, model.source(), ": the unk_token \"",
              model.text("unk_token"), "\" is not in the vocabulary");
  if (unknown != description.pieces.end()) description.unknown = static_cast<i32>(unknown - description.pieces.begin());
}

}  // namespace

BpeDescription parse_tokenizer_json(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const JsonObject file(json, source);
  check_members(file, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  const JsonObject model = file.object("model");
  // Files of the first versions have no type; only BPE has merges.
  const std::string type = model.find("type") ? model.text("type") : model.find("merges") ? "BPE" : "no type";
  check_input(
      type == "BPE", source, ": its model is ", type,
      ", which is not supported: only BPE is read from a tokenizer.json; for a unigram model use its sentencepiece "
      "file tokenizer.model");
  BpeDescription description;
  if (file.find("normalizer")) read_normalizer(file.object("normalizer"), description);
  if (file.find("pre_tokenizer")) read_pre_tokenizer(file.object("pre_tokenizer"), description);
  if (file.find("decoder")) read_decoder(file.object("decoder"), description);
  if (file.find("post_processor")) read_post_processor(file.object("post_processor"), description);
  read_model(model, description);
  const auto end = static_cast<i64>(description.pieces.size());
  read_merges(model.array("merges"), model.source(), description);
  if (file.find("added_tokens")) read_added_tokens(file.array("added_tokens"), source, description);
  check_no_holes(description, end, source);
  check_added_once(description, source);
  if (description.rules.empty()) description.rules = "none: each text is one word";
  return description;
}

i64 count_tokens(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  const JsonObject file(json, source);
  const Json& vocab = file.object("model").at("vocab");
  auto count = static_cast<i64>(vocab.size());
  if (!file.find("added_tokens")) return count;
  const Json& added = file.array("added_tokens");
  for (std::size_t i = 0; i < added.size(); ++i)
    count = std::max(count, element(added, i, source).integer("id", 0, std::numeric_limits<i32>::max()) + 1);
  return count;
}

OrderedJson added_tokens_json(const std::vector<AddedToken>& tokens) {
  auto list = OrderedJson::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

namespace {

OrderedJson byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

OrderedJson pre_tokenizer(const BpeDescription& description) {
  auto steps = OrderedJson::array();
  for (const PreTokenizerStep& step : description.pre_tokenizer) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::get<SplitStep>(step).pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(byte_level());
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

OrderedJson model(const BpeDescription& description) {
  auto vocab = OrderedJson::object();
  for (std::size_t id = 0; id < description.pieces.size(); ++id) {
    // vocab[...] would search all elements.
    if (!description.pieces[id].empty())
      vocab.get_ref<OrderedJson::object_t&>().emplace_back(description.pieces[id], id);
  }
  auto merges = OrderedJson::array();
  for (const Merge& merge : description.merges)
    merges.push_back({description.pieces[merge.left], description.pieces[merge.right]});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", description.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string to_tokenizer_json(const BpeDescription& description) {
  const OrderedJson json{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added_tokens_json(description.added)},
                         {"normalizer", description.normalizer.empty() ? OrderedJson() : OrderedJson{{"type", "NFC"}}},
                         {"pre_tokenizer", pre_tokenizer(description)},
                         {"post_processor", nullptr},
                         {"decoder", byte_level()},
                         {"model", model(description)}};
  return json.dump(1) + "\n";
}

}  // namespace mcpp
