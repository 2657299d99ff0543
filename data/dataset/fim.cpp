#include "data/dataset/fim.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/philox.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/dataset/batch.h"

namespace mcpp {

/// Random choices of one sample, in order.
class FimTransform::Draws {
 public:
  Draws(u64 key, u64 sample) : key_(key), sample_(sample) {}

  bool is_chosen(double probability) { return uniform_open(next()) < probability; }
  /// Returns a value in [0, count).
  u64 below(u64 count) { return u64{next()} * count >> 32; }

 private:
  u32 next() {
    const u32 block = count_ / 4, element = count_ % 4;
    ++count_;
    return philox4x32(key_, {static_cast<u32>(sample_), static_cast<u32>(sample_ >> 32), block, 0})[element];
  }

  u64 key_, sample_;
  u32 count_ = 0;
};

namespace {

/// Names of the tokens for prefix, middle and suffix in published tokenizers.
constexpr std::array<std::array<std::string_view, 3>, 5> kKnownTokens{
    {{"<fim_prefix>", "<fim_middle>", "<fim_suffix>"},
     {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"},
     {"<\xEF\xBD\x9C"
      "fim\xE2\x96\x81"
      "begin\xEF\xBD\x9C>",
      "<\xEF\xBD\x9C"
      "fim\xE2\x96\x81"
      "end\xEF\xBD\x9C>",
      "<\xEF\xBD\x9C"
      "fim\xE2\x96\x81hole\xEF\xBD\x9C>"},
     {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<MID>", "\xE2\x96\x81<SUF>"},
     {"[PREFIX]", "[MIDDLE]", "[SUFFIX]"}}};

/// Returns advice on the tokens to configure.
std::string advice_for(const Tokenizer& tokenizer) {
  for (const auto& names : kKnownTokens) {
    if (std::ranges::all_of(names, [&](std::string_view name) { return tokenizer.id(name) >= 0; })) {
      return str("it has --data.fim_prefix_token=", names[0], " --data.fim_middle_token=", names[1],
                 " --data.fim_suffix_token=", names[2]);
    }
  }
  return "name tokens that it has (`megatron_cpp tokenizer encode` shows the tokens of a text), use a tokenizer with "
         "special tokens for fill in the middle, or set data.fim_rate to 0";
}

/// Returns the byte offset of a character.
std::size_t offset_of_character(std::string_view text, u64 character) {
  std::size_t offset = 0;
  for (; character > 0; --character) offset += static_cast<std::size_t>(utf8_sequence_length(text.substr(offset)));
  return offset;
}

/// Returns true if decoding `tokens` drops the space of the first piece, which encoding adds again.
bool drops_space(const Tokenizer& tokenizer, std::span<const i32> tokens) {
  for (const i32& token : tokens) {
    const std::string text = tokenizer.decode(std::span(&token, 1));
    if (tokenizer.piece(token).starts_with("\xE2\x96\x81")) return !text.starts_with(' ');
    if (!text.empty()) return false;
  }
  return false;
}

}  // namespace

FimTransform::FimTransform(const DataConfig& config)
    : tokenizer_(Path(config.tokenizer_model)),
      rate_(config.fim_rate),
      spm_rate_(config.fim_spm_rate),
      fragment_rate_(config.fim_fragment_rate),
      no_prefix_(config.fim_no_prefix),
      prefix_(token_of("fim_prefix_token", config.fim_prefix_token)),
      middle_(token_of("fim_middle_token", config.fim_middle_token)),
      suffix_(token_of("fim_suffix_token", config.fim_suffix_token)),
      eod_(config.eod_token >= 0 ? static_cast<i32>(config.eod_token) : tokenizer_.eod()),
      split_(config.fim_split_sample.empty() ? -1 : token_of("fim_split_sample", config.fim_split_sample)) {
  pad_ = config.fim_pad_token.empty() ? eod_ : token_of("fim_pad_token", config.fim_pad_token);
  check_input(prefix_ != middle_ && middle_ != suffix_ && prefix_ != suffix_, "data.fim_prefix_token: \"",
              config.fim_prefix_token, "\", data.fim_middle_token \"", config.fim_middle_token,
              "\" and data.fim_suffix_token \"", config.fim_suffix_token, "\" must be three different tokens");
}

i32 FimTransform::token_of(const char* key, const std::string& piece) const {
  const i32 id = tokenizer_.id(piece);
  check_input(id >= 0, "data.", key, ": ", tokenizer_.path().string(), " has no token \"", piece, "\"; ",
              advice_for(tokenizer_));
  return id;
}

void FimTransform::apply(u64 key, u64 sample, std::span<i32> tokens, std::span<u8> targets) const {
  Draws draws(key, sample);
  Tokens result;
  result.reserve(tokens.size() + 3);
  std::span<const i32> rest = tokens;
  for (auto end = std::ranges::find(rest, eod_); end != rest.end(); end = std::ranges::find(rest, eod_)) {
    const auto size = static_cast<std::size_t>(end - rest.begin());
    if (size > 0) {
      append_document(rest.first(size), draws, result);
      result.push_back(eod_);
    }
    rest = rest.subspan(size + 1);
  }
  append_document(rest, draws, result);
  const std::size_t size = std::min(result.size(), tokens.size());
  std::copy_n(result.begin(), size, tokens.begin());
  std::ranges::fill(tokens.subspan(size), pad_);
  if (!targets.empty()) std::ranges::fill(targets.subspan(size), u8{0});
}

/// Appends a document, whose fragments are rearranged separately if it has several.
void FimTransform::append_document(std::span<const i32> document, Draws& draws, Tokens& out) const {
  if (split_ < 0 || std::ranges::find(document, split_) == document.end())
    return append_rearranged(document, rate_, draws, out);
  if (!draws.is_chosen(rate_)) {
    out.insert(out.end(), document.begin(), document.end());
    return;
  }
  for (auto end = std::ranges::find(document, split_); end != document.end();
       end = std::ranges::find(document, split_)) {
    const auto size = static_cast<std::size_t>(end - document.begin());
    if (size > 0) {
      append_rearranged(document.first(size), fragment_rate_, draws, out);
      out.push_back(split_);
    }
    document = document.subspan(size + 1);
  }
  append_rearranged(document, fragment_rate_, draws, out);
}

void FimTransform::append_rearranged(std::span<const i32> tokens, double rate, Draws& draws, Tokens& out) const {
  const auto keep = [&] { out.insert(out.end(), tokens.begin(), tokens.end()); };
  if (tokens.empty() || !draws.is_chosen(rate)) return keep();
  const std::string text = tokenizer_.decode(tokens);
  if (!no_prefix_.empty() && text.starts_with(no_prefix_)) return keep();
  const u64 positions = static_cast<u64>(count_characters(text)) + 1;
  std::array<u64, 2> bounds{draws.below(positions), draws.below(positions)};
  std::ranges::sort(bounds);
  const std::size_t first = offset_of_character(text, bounds[0]), second = offset_of_character(text, bounds[1]);
  const auto encode = [&, whole = std::string_view(text), begins = drops_space(tokenizer_, tokens)](std::size_t begin,
                                                                                                    std::size_t end) {
    const TextPart part{.begins = begins && begin == 0, .ends = false, .before = whole.substr(0, begin)};
    return tokenizer_.encode(whole.substr(begin, end - begin), part);
  };
  const Tokens prefix = encode(0, first), middle = encode(first, second), suffix = encode(second, text.size());
  const auto append = [&](std::initializer_list<i32> marks, const Tokens& part) {
    out.insert(out.end(), marks);
    out.insert(out.end(), part.begin(), part.end());
  };
  if (draws.is_chosen(spm_rate_)) {
    append({prefix_, suffix_}, suffix);
    append({middle_}, prefix);
    append({}, middle);
  } else {
    append({prefix_}, prefix);
    append({suffix_}, suffix);
    append({middle_}, middle);
  }
}

void FimDataset::read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const {
  dataset_->read(sample, tokens, targets);
  check_token_ids(*dataset_, sample, tokens, transform_->tokenizer().vocab_size());
  transform_->apply(key_, static_cast<u64>(sample), tokens, targets);
}

SampleOrigin FimDataset::origin(i64 sample) const {
  SampleOrigin origin = dataset_->origin(sample);
  origin.is_rearranged = true;
  return origin;
}

}  // namespace mcpp
