#include "megatron_cpp/huggingface/huggingface_tokenizer.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/json.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/tokenizer/bpe/regex.h"
#include "data/tokenizer/sentencepiece_normalizer.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    u32 bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) bits = bits << 8 | (j < bytes.size() ? static_cast<u8>(bytes[j]) : 0);
    for (std::size_t j = 0; j < 4; ++j) text += i + j > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * j) & 63];
  }
  return text;
}

bool has_byte_fallback(const SentencepieceModel& model) {
  return std::ranges::any_of(model.pieces, [](const SentencePiece& piece) { return piece.type == PieceType::Byte; });
}

/// Returns true for pieces that sentencepiece matches before all others. A piece with a literal space never matches,
/// because normalized text has U+2581 instead.
bool is_symbol(const SentencePiece& piece) {
  return piece.type == PieceType::UserDefined && piece.text.find(' ') == std::string::npos;
}

/// Returns true for pieces that no text is tokenized to.
bool is_unmatchable(const SentencePiece& piece) {
  return piece.type == PieceType::Unknown || piece.type == PieceType::Control || piece.type == PieceType::Byte ||
         (piece.type == PieceType::UserDefined && !is_symbol(piece));
}

/// Returns a pattern for the beginning of a text to insert a space before. It excludes the symbols of a BPE model: they
/// are added tokens, whose spelling transformers normalizes like a text, and must not get a space.
std::string prefixed_texts(const SentencepieceModel& model) {
  std::vector<std::string> symbols;
  for (const SentencePiece& piece : model.pieces)
    if (is_symbol(piece)) symbols.push_back(quoted_pattern(with_spaces(piece.text)));
  return "\\A(?!(?:" + join(symbols, "|") + ")?\\z)";
}

OrderedJson normalizer(const SentencepieceModel& model) {
  auto steps = OrderedJson::array();
  const auto replace = [&](const char* kind, std::string_view pattern, std::string_view content) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}});
  };
  const bool has_symbols = std::ranges::any_of(model.pieces, is_symbol);
  if (!model.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", base64(model.charsmap)}});
  if (model.remove_extra_whitespaces) {
    replace("Regex", str("\\A +|[ ", kSpaceMark, "]+\\z"), "");
    replace("Regex", " {2,}", " ");
  }
  // If Tokenizer::encode() encodes U+2581 as bytes, U+2581 does not stand for a space.
  if (!keeps_space_marks(model)) replace("String", kSpaceMark, " ");
  if (model.add_dummy_prefix && has_symbols && model.type == SegmentationType::Bpe)
    replace("Regex", prefixed_texts(model), " ");
  else if (model.add_dummy_prefix)
    steps.push_back({{"type", "Prepend"}, {"prepend", " "}});
  return steps.empty() ? OrderedJson() : OrderedJson{{"type", "Sequence"}, {"normalizers", steps}};
}

OrderedJson decoder(const SentencepieceModel& model) {
  auto steps = OrderedJson::array({{{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (model.add_dummy_prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

/// Returns the tokens that decoding omits and, for a BPE model, the pieces that sentencepiece matches before all
/// others. A unigram model gives such pieces a high score instead.
OrderedJson added_tokens(const SentencepieceModel& model) {
  auto tokens = OrderedJson::array();
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    const bool is_special = piece.type == PieceType::Control || piece.type == PieceType::Unknown;
    const bool is_token = is_symbol(piece) && model.type != SegmentationType::Unigram;
    if (!is_special && !is_token) continue;
    tokens.push_back({{"id", id},
                      {"content", with_spaces(piece.text)},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", is_token},
                      {"special", is_special}});
  }
  return tokens;
}

/// Returns the merges of a BPE model. sentencepiece repeatedly merges the leftmost pair of neighbors that forms the
/// piece with the highest score. transformers ranks pairs instead, so all pairs that form one piece get consecutive
/// ranks. If two overlapping pairs form the same piece ("ab a ba" for "aba"), the left pair must have the better rank;
/// it is the pair after whose first part the piece repeats its beginning.
OrderedJson merges(const SentencepieceModel& model) {
  std::set<std::string_view> normal;
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == PieceType::Normal) normal.insert(piece.text);
  struct Merge {
    float score;
    std::size_t id;
    bool repeats;
    std::string_view left, right;
  };
  std::vector<Merge> result;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type != PieceType::Normal) continue;
    const std::string_view text = piece.text;
    for (std::size_t at = text.size(); at-- > 1;) {
      const std::string_view left = text.substr(0, at), right = text.substr(at);
      if (normal.contains(left) && normal.contains(right))
        result.push_back({piece.score, id, text.starts_with(right), left, right});
    }
  }
  std::ranges::stable_sort(result, [](const Merge& a, const Merge& b) {
    return std::tuple(-a.score, a.id, !a.repeats) < std::tuple(-b.score, b.id, !b.repeats);
  });
  auto list = OrderedJson::array();
  for (const Merge& merge : result) list.push_back({with_spaces(merge.left), with_spaces(merge.right)});
  return list;
}

OrderedJson bpe(const SentencepieceModel& model) {
  auto vocab = OrderedJson::object();
  OrderedJson unknown;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.type == PieceType::Unknown) unknown = piece.text;
    // vocab[...] would search all elements.
    vocab.get_ref<OrderedJson::object_t&>().emplace_back(with_spaces(piece.text), id);
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", unknown},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", has_byte_fallback(model)},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", merges(model)}};
}

/// Returns the characters of a text.
std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const auto size = static_cast<std::size_t>(std::max(utf8_sequence_length(text), i64{1}));
    result.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return result;
}

/// Returns a unigram model. transformers matches every piece in a text, including pieces such as <eod> that
/// sentencepiece never matches. Their scores are therefore set below the score of any other tokenization of the same
/// text.
OrderedJson unigram(const SentencepieceModel& model) {
  double min_score = 0;
  OrderedJson unknown;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    min_score = std::min(min_score, static_cast<double>(model.pieces[id].score));
    if (model.pieces[id].type == PieceType::Unknown) unknown = id;
  }
  const double never = 100 * min_score - 1000;
  auto vocab = OrderedJson::array();
  constexpr double kSymbolScore = -0.1;
  for (const SentencePiece& piece : model.pieces) {
    const double score = piece.type == PieceType::UserDefined ? kSymbolScore : static_cast<double>(piece.score);
    vocab.push_back(OrderedJson::array({with_spaces(piece.text), is_unmatchable(piece) ? never : score}));
  }
  return {{"type", "Unigram"},
          {"unk_id", unknown},
          {"vocab", std::move(vocab)},
          {"byte_fallback", has_byte_fallback(model)}};
}

/// Returns the prefix of `text` after which to split the text so that it never becomes one piece. The split separates a
/// character that is a piece from a character that is not, because no other piece spans both. Two characters that are
/// not pieces form one unknown token and must not be separated. Returns an empty string if all characters are pieces.
std::string find_split(std::string_view text, const std::set<std::string_view>& pieces) {
  const std::vector<std::string_view> parts = characters(text);
  const auto is_piece = [&](std::string_view part) { return pieces.contains(part); };
  if (parts.size() < 2 || std::ranges::all_of(parts, is_piece)) return "";
  std::size_t last = 0;  // last character before the split
  while (last + 2 < parts.size() && is_piece(parts[last]) == is_piece(parts[last + 1])) ++last;
  const auto from = static_cast<std::size_t>(parts[last].data() - text.data());
  return str(last == 0 ? "" : str("(?<=", quoted_pattern(text.substr(0, from)), ")"), quoted_pattern(parts[last]),
             "(?=", quoted_pattern(text.substr(from + parts[last].size())), ")");
}

/// Returns true if normalization would change a user-defined symbol. sentencepiece excludes these symbols from
/// normalization.
bool changes_symbols(SentencepieceModel model) {
  std::vector<std::string> symbols;
  for (const SentencePiece& piece : model.pieces)
    if (is_symbol(piece)) symbols.push_back(piece.text);
  const bool strips_spaces = model.remove_extra_whitespaces && model.type == SegmentationType::Bpe;
  model.pieces.clear();
  model.add_dummy_prefix = model.remove_extra_whitespaces = false;
  const SentencepieceNormalizer normalizer(model);
  return std::ranges::any_of(symbols, [&](const std::string& symbol) {
    std::string buffer;
    return normalizer.apply(symbol, {}, buffer) != with_spaces(symbol) ||
           (strips_spaces && symbol.find(kSpaceMark) != std::string::npos);
  });
}

/// Returns a pre-tokenizer that splits texts such as "<eod>" where find_split() says. The score of the piece <eod> is
/// not low enough if a character of the text is not a piece, because the score of an unknown character is even lower.
OrderedJson pre_tokenizer(const SentencepieceModel& model) {
  if (model.type == SegmentationType::Bpe) return {};
  std::set<std::string_view> normal;
  for (const SentencePiece& piece : model.pieces)
    if (piece.type == PieceType::Normal) normal.insert(piece.text);
  std::vector<std::string> splits;
  for (const SentencePiece& piece : model.pieces) {
    const std::string split =
        is_unmatchable(piece) && piece.type != PieceType::UserDefined ? find_split(piece.text, normal) : "";
    if (!split.empty()) splits.push_back(split);
  }
  if (splits.empty()) return {};
  return {{"type", "Split"},
          {"pattern", {{"Regex", join(splits, "|")}}},
          {"behavior", "MergedWithPrevious"},
          {"invert", false}};
}

/// Adds to `json` a template that inserts bos before texts, unless `json` already has a post-processor. Returns the
/// result.
std::string with_bos_template(const std::string& json, const std::string& name, i64 id) {
  OrderedJson file = OrderedJson::parse(json);
  if (!file["post_processor"].is_null()) return json;
  const auto part = [](const char* kind, const std::string& text, int type) {
    return OrderedJson{{kind, {{"id", text}, {"type_id", type}}}};
  };
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", OrderedJson::array({part("SpecialToken", name, 0), part("Sequence", "A", 0)})},
                            {"pair", OrderedJson::array({part("SpecialToken", name, 0), part("Sequence", "A", 0),
                                                         part("SpecialToken", name, 1), part("Sequence", "B", 1)})},
                            {"special_tokens", {{name, {{"id", name}, {"ids", {id}}, {"tokens", {name}}}}}}};
  return file.dump(1) + "\n";
}

}  // namespace

std::string tokenizer_json(const SentencepieceModel& model, const std::string& source) {
  const bool is_unigram = model.type == SegmentationType::Unigram;
  const auto need = [&](bool holds, const char* what) {
    check_input(holds, "tokenizer model ", source, ": transformers has no equivalent of its ", what,
                "; move the tokenizer out of the folder to export only the weights");
  };
  need(is_unigram || model.type == SegmentationType::Bpe, "model type (neither unigram nor bpe)");
  need(!model.treat_whitespace_as_suffix, "treat_whitespace_as_suffix");
  need(model.escape_whitespaces, "escape_whitespaces = false");
  std::set<std::string> names;
  for (const SentencePiece& piece : model.pieces) names.insert(with_spaces(piece.text));
  need(names.size() == model.pieces.size(), "pieces that differ only in how they spell spaces");
  const bool has_unused =
      std::ranges::any_of(model.pieces, [](const SentencePiece& piece) { return piece.type == PieceType::Unused; });
  need(!has_unused, "unused pieces");
  need(!changes_symbols(model), "user-defined symbols, which its normalization changes");
  const OrderedJson json{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added_tokens(model)},
                         {"normalizer", normalizer(model)},
                         {"pre_tokenizer", pre_tokenizer(model)},
                         {"post_processor", nullptr},
                         {"decoder", decoder(model)},
                         {"model", is_unigram ? unigram(model) : bpe(model)}};
  return json.dump(1) + "\n";
}

HuggingfaceTokenizer::HuggingfaceTokenizer(const Path& model)
    : tokenizer_(model), file_(read_tokenizer_file(model)), kind_(tokenizer_kind(file_)) {
  tokens_.eos = tokens_.bos = tokenizer_.eod();
  if (kind_ == TokenizerKind::Sentencepiece) {
    read_sentencepiece(parse_sentencepiece_model(file_, model.string()), model.string());
    return;
  }
  json_ = kind_ == TokenizerKind::TokenizerJson ? file_ : convert_to_tokenizer_json(model, {});
  if (!tokenizer_.prefix_tokens().empty()) tokens_.bos = tokenizer_.prefix_tokens().front();
}

void HuggingfaceTokenizer::read_sentencepiece(const SentencepieceModel& model, const std::string& source) {
  const auto bos = std::ranges::find(model.pieces, model.bos_piece, &SentencePiece::text);
  if (bos != model.pieces.end() && bos->type == PieceType::Control) tokens_.bos = bos - model.pieces.begin();
  const auto unknown = std::ranges::find(model.pieces, PieceType::Unknown, &SentencePiece::type);
  if (unknown != model.pieces.end()) unknown_ = unknown->text;
  adds_prefix_space_ = model.add_dummy_prefix;
  json_ = tokenizer_json(model, source);
}

SpecialTokens HuggingfaceTokenizer::special_tokens() const {
  return tokens_;
}

std::string HuggingfaceTokenizer::token_name(std::optional<i64> id) const {
  const std::string piece = id ? tokenizer_.piece(static_cast<i32>(*id)) : "";
  return kind_ == TokenizerKind::Sentencepiece ? with_spaces(piece) : piece;
}

void HuggingfaceTokenizer::write(const Path& folder, i64 longest, const SpecialTokens& tokens) const {
  // config.json may contain ids that are in the model's vocabulary but not in the tokenizer.
  const auto is_known = [&](std::optional<i64> id) { return id && *id < tokenizer_.vocab_size(); };
  const auto name_or_null = [&](std::optional<i64> id) {
    return is_known(id) ? OrderedJson(token_name(id)) : OrderedJson();
  };
  OrderedJson config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"bos_token", name_or_null(tokens.bos)},
                     {"eos_token", name_or_null(tokens.eos)},
                     {"add_bos_token", tokens.adds_bos},
                     {"add_eos_token", false},
                     {"add_prefix_space", adds_prefix_space_},
                     {"clean_up_tokenization_spaces", false},
                     {"model_max_length", longest},
                     // With a sentencepiece model, "<eod>" in a text is ordinary text, as in our tokenizer.
                     {"split_special_tokens", kind_ == TokenizerKind::Sentencepiece}};
  if (!unknown_.empty()) config["unk_token"] = unknown_;
  config.update(stated_members(tokens, "tokenizer_config.json"));
  if (kind_ == TokenizerKind::Sentencepiece) write_file_atomic(folder / "tokenizer.model", file_);
  write_file_atomic(folder / "tokenizer.json", tokens.adds_bos && is_known(tokens.bos)
                                                   ? with_bos_template(json_, token_name(tokens.bos), *tokens.bos)
                                                   : json_);
  write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace mcpp
