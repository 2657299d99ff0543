#include "data/tokenizer/bpe/bpe_description.h"

#include <algorithm>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Differs from the patterns above, as in tiktoken: line ends and spaces match one at a time instead of in runs.
constexpr std::string_view kCl100k =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<std::string_view, 5> kPatterns{kGpt2, kLlama3, kQwen2, kCl100k, kO200k};

std::vector<std::pair<i32, std::string>> numbered(i32 first, const std::vector<std::string>& names) {
  std::vector<std::pair<i32, std::string>> tokens;
  for (const std::string& name : names) tokens.emplace_back(first++, name);
  return tokens;
}

std::vector<std::pair<i32, std::string>> llama3_special() {
  const auto reserved = [](int i) { return str("<|reserved_special_token_", i, "|>"); };
  std::vector<std::string> names{"<|begin_of_text|>", "<|end_of_text|>"};
  for (int i = 0; i < 4; ++i) names.push_back(reserved(i));
  names.insert(names.end(), {"<|start_header_id|>", "<|end_header_id|>", reserved(4), "<|eot_id|>"});
  for (int i = 5; i < 251; ++i) names.push_back(reserved(i));
  return numbered(128000, names);
}

const std::vector<KnownVocabulary>& all_known() {
  static const std::vector<KnownVocabulary> known{
      {"GPT-2", 50256, PreTokenization::Gpt2, {{50256, "<|endoftext|>"}}},
      {"cl100k",
       100256,
       PreTokenization::Cl100k,
       {{100257, "<|endoftext|>"},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}}},
      {"Llama 3", 128000, PreTokenization::Llama3, llama3_special()},
      {"Qwen",
       151643,
       PreTokenization::Qwen2,
       {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}},
      {"o200k", 199998, PreTokenization::O200k, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}}};
  return known;
}

}  // namespace

std::string_view word_pattern(PreTokenization kind) {
  return kPatterns[static_cast<std::size_t>(kind)];
}

void set_rules(BpeDescription& description, PreTokenization kind) {
  description.is_byte_level = true;
  description.normalizer.clear();
  if (kind == PreTokenization::Qwen2) description.normalizer.emplace_back(UnicodeForm::Nfc);
  description.pre_tokenizer = {SplitStep{std::string(word_pattern(kind)), SplitBehavior::Isolated, false}};
  description.rules = enum_name(kind);
}

const KnownVocabulary* known_vocabulary(i64 pieces) {
  const auto it = std::ranges::find(all_known(), pieces, &KnownVocabulary::pieces);
  return it == all_known().end() ? nullptr : &*it;
}

std::string known_vocabularies() {
  std::vector<std::string> all;
  for (const KnownVocabulary& known : all_known()) all.push_back(str(known.pieces, " (", known.name, ")"));
  return join(all, ", ");
}

}  // namespace mcpp
