#include "data/tokenizer/bpe/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>

#include "base/check.h"

namespace mcpp {
namespace {

void check_icu(UErrorCode error) {
  if (U_FAILURE(error)) fail(ExitCode::Internal, "ICU: ", u_errorName(error));
}

const icu::Normalizer2& normalizer_of(UnicodeForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = form == UnicodeForm::Nfc    ? icu::Normalizer2::getNFCInstance(error)
                                       : form == UnicodeForm::Nfd  ? icu::Normalizer2::getNFDInstance(error)
                                       : form == UnicodeForm::Nfkc ? icu::Normalizer2::getNFKCInstance(error)
                                                                   : icu::Normalizer2::getNFKDInstance(error);
  check_icu(error);
  return *normalizer;
}

icu::StringPiece piece_of(std::string_view text) {
  check_input(text.size() < std::size_t{1} << 30, "a document of more than 1 GiB cannot be normalized");
  return {text.data(), static_cast<i32>(text.size())};
}

/// Returns false if the form leaves `text` unchanged, which holds for most text and always for ASCII.
bool to_form(UnicodeForm form, std::string_view text, std::string& out) {
  if (std::ranges::all_of(text, [](char c) { return static_cast<u8>(c) < 0x80; })) return false;
  const icu::Normalizer2& normalizer = normalizer_of(form);
  UErrorCode error = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(piece_of(text), error) && U_SUCCESS(error)) return false;
  icu::StringByteSink<std::string> sink(&out);
  normalizer.normalizeUTF8(0, piece_of(text), sink, nullptr, error);
  check_icu(error);
  return true;
}

}  // namespace

Normalizer::Normalizer(const std::vector<NormalizerStep>& steps, const std::string& source) : source_(source) {
  for (const NormalizerStep& step : steps) {
    if (const auto* replace = std::get_if<ReplaceStep>(&step))
      steps_.emplace_back(Replace{Regex(replace->pattern, source), replace->content});
    else if (const auto* prepend = std::get_if<PrependStep>(&step))
      steps_.emplace_back(*prepend);
    else
      steps_.emplace_back(std::get<UnicodeForm>(step));
  }
}

/// Throws if the text has grown too much: steps that each double it would exhaust the memory.
void Normalizer::check_growth(std::size_t size, std::size_t original_size) const {
  constexpr std::size_t kMaxGrowth = 64, kMaxAdded = std::size_t{1} << 16;
  check_input(size <= kMaxGrowth * original_size + kMaxAdded, source_, ": its normalizer expands a text of ",
              original_size, " bytes more than ", kMaxGrowth, " times; check its Replace and Prepend steps");
}

std::string_view Normalizer::apply(std::string_view text, SegmentStart start, std::string& buffer,
                                   RegexMemory& memory) const {
  const std::size_t original_size = text.size();
  for (const auto& step : steps_) {
    std::string changed;
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      if (!to_form(*form, text, changed)) continue;
    } else if (const auto* prepend = std::get_if<PrependStep>(&step)) {
      if (text.empty() || start == SegmentStart::Continued) continue;
      changed.append(prepend->text).append(text);
    } else {
      const auto& replace = std::get<Replace>(step);
      RegexMatches matches(replace.pattern, text, memory);
      std::size_t done = 0;
      while (const auto match = matches.next()) {
        changed.append(text.substr(done, match->begin - done)).append(replace.content);
        check_growth(changed.size(), original_size);
        done = match->end;
      }
      if (done == 0 && changed.empty()) continue;
      changed.append(text.substr(done));
    }
    check_growth(changed.size(), original_size);
    buffer = std::move(changed);
    text = buffer;
  }
  return text;
}

}  // namespace mcpp
