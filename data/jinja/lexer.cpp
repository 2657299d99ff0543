#include "data/jinja/lexer.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace mcpp::jinja {
namespace {

constexpr std::size_t npos = std::string_view::npos;
constexpr std::string_view kSpace = " \t\r\n";

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_character(u32 code, std::string& text) {
  const auto put = [&](u32 byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    // As in Jinja, a single line end at the end of the template is not part of it.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      add_text(tag);
      if (tag == npos) break;
      read_tag();
    }
    add(TokenKind::End, "");
    return std::move(tokens_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ExitCode::BadInput, "line ", line_, ": ", parts...);
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool has(std::string_view text) const { return source_.substr(at_).starts_with(text); }
  void advance(std::size_t size) {
    line_ += std::ranges::count(source_.substr(at_, size), '\n');
    at_ += size;
  }

  /// Returns the position of the next {{, {% or {#, or npos.
  std::size_t find_tag() const {
    for (std::size_t at = source_.find('{', at_); at != npos; at = source_.find('{', at + 1)) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return npos;
  }

  /// Adds the text up to a tag, without the blanks that the tag removes.
  void add_text(std::size_t tag) {
    std::string_view text = source_.substr(at_, tag == npos ? npos : tag - at_);
    const std::size_t size = text.size();
    if (tag != npos) {
      const char kind = source_[tag + 1], mark = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      if (mark == '-') {
        text = text.substr(0, text.find_last_not_of(kSpace) + 1);  // npos + 1 is 0
      } else if (kind != '{' && mark != '+') {
        const std::size_t line = text.rfind('\n') + 1;
        const bool begins_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
        if (begins_line && text.find_first_not_of(" \t", line) == npos) text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::Text, std::string(text));
    advance(size);
  }

  void read_tag() {
    const char kind = source_[at_ + 1];
    advance(2);
    if (kind == '#') return skip_comment();
    if (has("-") || has("+")) advance(1);
    add(kind == '{' ? TokenKind::BeginOutput : TokenKind::BeginBlock, "");
    const std::string_view end = kind == '{' ? "}}" : "%}";
    const i64 first_line = line_;
    int open_brackets = 0;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail(ExitCode::BadInput, "line ", first_line, ": the tag has no ", end);
      const bool has_mark = has("-") || has("+");
      if (open_brackets == 0 && source_.substr(at_ + (has_mark ? 1 : 0)).starts_with(end)) break;
      read_token(open_brackets);
    }
    add(kind == '{' ? TokenKind::EndOutput : TokenKind::EndBlock, "");
    end_tag(kind == '%');
  }

  void skip_comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == npos) fail_here("the comment has no #}");
    const bool strips = source_[end - 1] == '-' && end > at_;
    advance(end - at_ - (strips ? 1 : 0));
    end_tag(/*is_block=*/true);
  }

  /// Skips the end of a tag and the blanks that it removes.
  void end_tag(bool is_block) {
    const bool strips = has("-"), keeps = has("+");
    advance(strips || keeps ? 3 : 2);
    if (strips) return skip_space();
    if (!is_block || keeps) return;
    if (has("\n")) advance(1);
  }

  void skip_space() { advance(std::min(source_.find_first_not_of(kSpace, at_), source_.size()) - at_); }

  void read_token(int& open_brackets) {
    const char c = source_[at_];
    if (is_name_start(c)) return read_name();
    if (is_digit(c)) return read_number();
    if (c == '"' || c == '\'') return read_string();
    constexpr std::array<std::string_view, 7> kLong{"==", "!=", "<=", ">=", "//", "**", "~"};
    for (const std::string_view op : kLong) {
      if (has(op)) return add_operator(op);
    }
    if (std::string_view("+-*/%<>=.,:|()[]{}").find(c) == npos) fail_here("unexpected character '", c, "'");
    open_brackets += c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
    if (open_brackets < 0) fail_here("'", c, "' closes nothing");
    add_operator(source_.substr(at_, 1));
  }

  void add_operator(std::string_view op) {
    add(TokenKind::Operator, std::string(op));
    advance(op.size());
  }

  void read_name() {
    std::size_t end = at_;
    while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::Name, std::string(source_.substr(at_, end - at_)));
    advance(end - at_);
  }

  void read_number() {
    std::size_t end = at_;
    bool is_float = false;
    std::string digits;
    const auto is_next_digit = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    for (; end < source_.size(); ++end) {
      const char c = source_[end];
      if (is_digit(c)) {
        digits += c;
      } else if (c == '.' && !is_float && is_next_digit(end + 1)) {
        is_float = true;
        digits += c;
      } else if (c != '_' || !is_next_digit(end + 1)) {
        break;
      }
    }
    const std::size_t sign = end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+') ? 1 : 0;
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E') && is_next_digit(end + 1 + sign)) {
      is_float = true;
      digits += source_[end + 1] == '-' ? "e-" : "e";
      for (end += 1 + sign; is_next_digit(end); ++end) digits += source_[end];
    }
    add(is_float ? TokenKind::Float : TokenKind::Integer, digits);
    advance(end - at_);
  }

  void read_string() {
    const char quote = source_[at_];
    const i64 first_line = line_;
    std::string text;
    advance(1);
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\') {
        read_escape(text);
      } else {
        text += source_[at_];
        advance(1);
      }
    }
    if (at_ >= source_.size()) fail(ExitCode::BadInput, "line ", first_line, ": the string has no closing ", quote);
    add(TokenKind::String, std::move(text));
    advance(1);
  }

  void read_escape(std::string& text) {
    constexpr std::string_view kNames = "nrtbfav0\\'\"\n", kValues{"\n\r\t\b\f\a\v\0\\'\"", 11};
    advance(1);
    if (at_ >= source_.size()) fail_here("the string has no end");
    const char c = source_[at_];
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const std::size_t known = kNames.find(c);
    if (digits > 0) {
      append_character(read_hex(digits), text);
      return;
    }
    if (known == npos)
      text += {'\\', c};
    else if (known < kValues.size())
      text += kValues[known];
    advance(1);
  }

  u32 read_hex(std::size_t digits) {
    advance(1);
    u32 code = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      const char c = at_ < source_.size() ? source_[at_] : ' ';
      const std::size_t value =
          std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (value == npos) fail_here("the escape sequence needs ", digits, " hexadecimal digits");
      code = code * 16 + static_cast<u32>(value);
      advance(1);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail_here("the escape sequence is not a character");
    return code;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  i64 line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize_template(std::string_view source) {
  std::string normalized;  // all line ends are \n
  for (std::size_t i = 0; i < source.size(); ++i) {
    const bool is_pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!is_pair) normalized += source[i] == '\r' ? '\n' : source[i];
  }
  return Lexer(normalized).run();
}

}  // namespace mcpp::jinja
