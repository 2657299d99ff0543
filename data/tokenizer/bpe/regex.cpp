#include "data/tokenizer/bpe/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <new>

#include "base/check.h"
#include "base/types.h"
#include "base/utf8.h"

namespace mcpp {
namespace {

// Limit that no valid expression reaches for a word or a run of spaces, and a runaway one reaches within a second.
constexpr u32 kMatchLimit = 10'000'000;
constexpr std::size_t kMinStackBytes = std::size_t{1} << 15, kMaxStackBytes = std::size_t{1} << 25;

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
      stack_(pcre2_jit_stack_create(kMinStackBytes, kMaxStackBytes,
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
  std::size_t error_offset = 0;
  // Ruby's ^ and $ match at line ends.
  const u32 options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &error,
                            &error_offset, context.get()));
  check_input(code_ != nullptr, source, ": the pattern ", pattern, " is not a regular expression: ", message_of(error),
              " at ", translated.substr(0, error_offset));
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // without it, searches are slower
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from, RegexMemory& memory) const {
  const int match_count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                      PCRE2_NO_UTF_CHECK, memory.match_, memory.context_);
  if (match_count == PCRE2_ERROR_NOMATCH) return std::nullopt;
  // With space for one pair, 0 means that there are groups too.
  check_input(match_count >= 0, source_, ": the pattern ", pattern_, " exceeds the match limit on the text at byte ",
              from, ": ", message_of(match_count));
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

// Translation of the patterns of `tokenizers` to PCRE2.

namespace {

// Inside of brackets. Unicode's White_Space; PCRE2's own \s also has U+180E.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kDigits = "\\p{Nd}";

constexpr std::array<std::string_view, 36> kCategories{
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
constexpr std::array<std::string_view, 10> kScripts{"Han",    "Hiragana", "Katakana", "Hangul",     "Latin",
                                                    "Arabic", "Cyrillic", "Greek",    "Devanagari", "Thai"};
constexpr std::array<std::string_view, 7> kGroups{"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
// Escapes with the same meaning in both, which excludes \v, \h, \b, \R, \X, \K, \G and references.
constexpr std::string_view kSameEscapes = "nrtfaeAzZ";

bool is_hex(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
}

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& source) : pattern_(pattern), source_(source) {}

  std::string run() {
    while (at_ < pattern_.size()) outside();
    return std::move(out_);
  }

 private:
  template <class... Parts>
  void need(bool holds, const Parts&... what) const {
    check_input(
        holds, source_, ": the pattern ", pattern_, " has ", what...,
        ", which is not supported; supported: the constructs in the tokenizers of GPT-2, GPT-4, Llama 3 and Qwen");
  }
  std::string_view rest() const { return pattern_.substr(at_); }
  void copy(std::size_t size) {
    out_ += pattern_.substr(at_, size);
    at_ += size;
  }

  void outside() {
    const char c = pattern_[at_];
    if (c == '\\') return escape(false);
    if (c == '[') return brackets();
    if (c == '(') return group();
    if (c == '{') return repeat();
    copy(1);
  }

  void group() {
    if (!rest().starts_with("(?")) return copy(1);
    const auto known = std::ranges::find_if(kGroups, [&](std::string_view start) { return rest().starts_with(start); });
    need(known != kGroups.end(), "a group that begins ", rest().substr(0, 4));
    copy(known->size());
  }

  /// Translates {n}, {n,} and {n,m}. Anything else in braces is literal text in both.
  void repeat() {
    std::size_t end = 1;
    while (end < rest().size() && (std::isdigit(static_cast<unsigned char>(rest()[end])) != 0 || rest()[end] == ','))
      ++end;
    const bool closes = end < rest().size() && rest()[end] == '}';
    need(!closes || rest()[1] != ',', "a repeat without a minimum");
    const char after = closes && end + 1 < rest().size() ? rest()[end + 1] : ' ';
    need(!closes || after != '+', "a + after a repeat");
    copy(closes ? end + 1 : 1);
  }

  /// Translates a character class, which may be nested in a different one.
  void emit_class(std::string_view members, bool is_negated, bool is_inside) {
    need(!is_inside || !is_negated, "\\S, \\D or \\W in brackets");
    if (is_inside) {
      out_ += members;
    } else {
      (((out_ += is_negated ? "[^" : "[") += members) += "]");
    }
  }

  void escape(bool is_inside) {
    need(rest().size() > 1, "a backslash at its end");
    const char c = rest()[1];
    if (c == 's' || c == 'S' || c == 'd' || c == 'D' || c == 'w' || c == 'W') {
      at_ += 2;
      const auto low = static_cast<char>(std::tolower(c));
      return emit_class(low == 's' ? kSpaces : low == 'd' ? kDigits : kWord, c != low, is_inside);
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u') return code_point();
    const bool is_sign = std::ispunct(static_cast<unsigned char>(c)) != 0;
    const bool is_same = kSameEscapes.find(c) != std::string_view::npos && (!is_inside || std::islower(c) != 0);
    need(is_sign || (is_same && !(is_inside && c == 'z')), "\\", c);
    copy(2);
  }

  void property() {
    const std::size_t end = rest().find('}');
    need(rest().size() > 3 && rest()[2] == '{' && end != std::string_view::npos, "\\", rest()[1], " without braces");
    const std::string_view name = rest().substr(3, end - 3);
    const bool is_script = std::ranges::count(kScripts, name) > 0;
    need(is_script || std::ranges::count(kCategories, name) > 0, "\\p{", name, "}");
    ((((out_ += '\\') += rest()[1]) += is_script ? "{sc:" : "{") += name) += '}';
    at_ += end + 1;
  }

  /// Translates \x41, \x{41} and \u0041. Two digits above 7F would be a byte of a character that has several.
  void code_point() {
    const bool has_braces = rest()[1] == 'x' && rest().size() > 2 && rest()[2] == '{';
    const std::size_t begin = has_braces ? 3 : 2;
    const std::size_t max_digits = has_braces ? 6 : rest()[1] == 'x' ? 2 : 4;
    std::size_t end = begin;
    while (end < rest().size() && end - begin < max_digits && is_hex(rest()[end])) ++end;
    const std::string_view digits = rest().substr(begin, end - begin);
    const bool is_whole =
        has_braces ? !digits.empty() && end < rest().size() && rest()[end] == '}' : digits.size() == max_digits;
    need(is_whole && (has_braces || max_digits == 4 || digits[0] < '8'), rest().substr(0, end));
    ((out_ += "\\x{") += digits) += '}';
    at_ += end + (has_braces ? 1 : 0);
  }

  void brackets() {
    copy(rest().starts_with("[^") ? 2 : 1);
    need(!rest().starts_with("]"), "brackets around nothing");
    while (!rest().empty() && rest()[0] != ']') {
      need(rest()[0] != '[', "brackets in brackets");
      need(!rest().starts_with("&&"), "&& in brackets");
      if (rest()[0] == '\\')
        escape(true);
      else
        copy(1);
    }
    need(!rest().empty(), "brackets that do not end");
    copy(1);
  }

  std::string_view pattern_;
  const std::string& source_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern, const std::string& source) {
  return Translator(pattern, source).run();
}

}  // namespace mcpp
