// The regular expressions of tokenizer files, found with PCRE2 and its compiler to machine code.
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

/// `pattern`, which Oniguruma would read in the syntax of Ruby (that of `tokenizers`), as PCRE2 must be given it to
/// find the same: they differ in what spaces and words are, in how lines end, and in some signs. BadInput, naming
/// `source` and what it is, for what PCRE2 has no equal of.
std::string to_pcre2(std::string_view pattern, const std::string& source);

/// What a search needs besides the expression. One at a time may use it.
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

/// Its const methods may be called by several threads at once.
class Regex {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
  };

  /// BadInput, naming `source`, for a `pattern` that is no regular expression of the kind that to_pcre2() takes.
  Regex(std::string_view pattern, const std::string& source);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// The first match in `text`, which is UTF-8, at or after the position `from`. What lies before it is seen by what
  /// looks back. BadInput when the expression tries more ways to match than any sound one has.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexMemory& memory) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string pattern_, source_;
};

/// All matches in a text, one after another. No match is empty where the one before it ended.
class RegexMatches {
 public:
  /// All three must outlive this.
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

/// A pattern that finds `text` itself.
std::string quoted_pattern(std::string_view text);

}  // namespace mcpp
