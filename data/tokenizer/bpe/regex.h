// Regular expressions of tokenizer files, matched by PCRE2 and its just-in-time compiler.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace mcpp {

/// Translates `pattern` from the Ruby syntax of Oniguruma, which `tokenizers` uses, to PCRE2, with identical matches.
/// The two differ in the definition of spaces and words, in line ends, and in some escapes. Throws BadInput, naming
/// `source` and the construct, if PCRE2 has no equivalent.
std::string to_pcre2(std::string_view pattern, const std::string& source);

/// Working memory of a search, for one search at a time.
class RegexMemory {
 public:
  RegexMemory();
  ~RegexMemory();
  RegexMemory(const RegexMemory&) = delete;
  RegexMemory& operator=(const RegexMemory&) = delete;

 private:
  friend class Regex;
  pcre2_real_match_data_8* match_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

/// Compiled regular expression. Const methods are thread-safe.
class Regex {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
  };

  /// Throws BadInput, naming `source`, if `pattern` is not a regular expression that to_pcre2() accepts.
  Regex(std::string_view pattern, const std::string& source);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// Returns the first match in `text`, which must be UTF-8, at or after position `from`. Lookbehind sees the text
  /// before `from`. Throws BadInput if the search exceeds the match limit, which no valid expression does.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexMemory& memory) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string pattern_, source_;
};

/// Iterator over all matches in a text. Skips empty matches at the end of the previous match.
class RegexMatches {
 public:
  /// Keeps references to all arguments, including `text`.
  RegexMatches(const Regex& regex, std::string_view text, RegexMemory& memory)
      : regex_(regex), text_(text), memory_(memory) {}

  std::optional<Regex::Match> next();

 private:
  const Regex& regex_;
  std::string_view text_;
  RegexMemory& memory_;
  std::size_t from_ = 0;
  std::optional<std::size_t> last_end_;
};

/// Returns a pattern that matches `text` literally.
std::string quoted_pattern(std::string_view text);

}  // namespace mcpp
