// Translation of the patterns of `tokenizers` to PCRE2.
#include <algorithm>
#include <array>
#include <cctype>

#include "base/check.h"
#include "base/types.h"
#include "data/tokenizer/bpe/regex.h"

namespace mcpp {
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
    check_input(holds, source_, ": the pattern ", pattern_, " has ", what...,
                ", which is not there; what the tokenizers of GPT-2, GPT-4, Llama 3 and Qwen use is");
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
    need(!closes || rest()[1] != ',', "a repeat without a least number");
    const char after = closes && end + 1 < rest().size() ? rest()[end + 1] : ' ';
    need(!closes || after != '+', "a + after a repeat");
    copy(closes ? end + 1 : 1);
  }

  /// Translates a class of characters, which may be inside of another.
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
    const std::size_t most = has_braces ? 6 : rest()[1] == 'x' ? 2 : 4;
    std::size_t end = begin;
    while (end < rest().size() && end - begin < most && is_hex(rest()[end])) ++end;
    const std::string_view digits = rest().substr(begin, end - begin);
    const bool is_whole =
        has_braces ? !digits.empty() && end < rest().size() && rest()[end] == '}' : digits.size() == most;
    need(is_whole && (has_braces || most == 4 || digits[0] < '8'), rest().substr(0, end));
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
