#include "data/tokenizer/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/check.h"
#include "base/utf8.h"

namespace mcpp {
namespace {

// Limit that no sound expression reaches for a word or a run of spaces, and a runaway one reaches within a second.
constexpr u32 kMatchLimit = 10'000'000;
constexpr std::size_t kSmallestStack = std::size_t{1} << 15, kLargestStack = std::size_t{1} << 25;

template <class T>
T* checked(T* pointer) {
  if (!pointer) throw std::bad_alloc();
  return pointer;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

RegexMemory::RegexMemory()
    : match_(checked(pcre2_match_data_create(1, nullptr))),
      context_(checked(pcre2_match_context_create(nullptr))),
      stack_(pcre2_jit_stack_create(kSmallestStack, kLargestStack,
                                    nullptr)) {  // null if there is no just-in-time compiler
  pcre2_set_match_limit(context_, kMatchLimit);
  if (stack_) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexMemory::~RegexMemory() {
  pcre2_jit_stack_free(stack_);
  pcre2_match_context_free(context_);
  pcre2_match_data_free(match_);
}

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Regex::Regex(std::string_view pattern, const std::string& source) : pattern_(pattern), source_(source) {
  const std::string translated = to_pcre2(pattern, source);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      checked(pcre2_compile_context_create(nullptr)), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  std::size_t place = 0;
  // Ruby's ^ and $ match at line ends.
  const u32 options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error, &place,
                            context.get()));
  check_input(code_ != nullptr, source, ": the pattern ", pattern, " is no regular expression: ", message_of(error),
              " at ", translated.substr(0, place));
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it, searches are slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from, RegexMemory& memory) const {
  const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, memory.match_, memory.context_);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  // With space for one pair, 0 means that there are groups too.
  check_input(found >= 0, source_, ": the pattern ", pattern_, " gives up on the text at byte ", from, ": ",
              message_of(found));
  const std::size_t* ends = pcre2_get_ovector_pointer(memory.match_);
  return Match{ends[0], ends[1]};
}

std::optional<Regex::Match> RegexMatches::next() {
  while (from_ <= text_.size()) {
    const std::optional<Regex::Match> match = regex_.find(text_, from_, memory_);
    if (!match) break;
    const bool is_empty = match->begin == match->end;
    const i64 step = is_empty ? std::max<i64>(1, utf8_sequence_length(text_.substr(match->end))) : 0;
    from_ = match->end + static_cast<std::size_t>(step);
    if (is_empty && last_end_ == match->end) continue;
    last_end_ = match->end;
    return match;
  }
  from_ = text_.size() + 1;
  return std::nullopt;
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace mcpp
