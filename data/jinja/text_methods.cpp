#include "data/jinja/text_methods.h"

#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "data/jinja/builtins.h"

namespace mcpp::jinja {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

void check_ascii(std::string_view text, std::string_view name) {
  check_input(count_characters(text) == std::ssize(text), name,
              ": text that is not ASCII is not supported: ", text.substr(0, 80));
}

/// Returns the length in bytes of the white space at the start of a text, by Python's str.isspace().
std::size_t space_at_start(std::string_view text) {
  if (text.empty()) return 0;
  const auto c = static_cast<u8>(text[0]);
  if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) return 1;
  for (const std::string_view space : {"\xC2\x85", "\xC2\xA0"})
    if (text.starts_with(space)) return 2;
  for (const std::string_view space :
       {"\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85",
        "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8", "\xE2\x80\xA9",
        "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"})
    if (text.starts_with(space)) return 3;
  return 0;
}

/// Removes white space from the start.
std::string_view without_space(std::string_view text) {
  for (std::size_t size = space_at_start(text); size > 0; size = space_at_start(text)) text.remove_prefix(size);
  return text;
}

/// Returns the position of the last `part` in `text`, npos if there is none.
std::size_t find_last_part(std::string_view text, std::string_view part, WorkBudget& budget) {
  // Unlike find_part(), rfind() may compare the whole part at every position.
  budget.spend(text.size(), 1 + std::ssize(part) / 16);
  return text.rfind(part);
}

/// Returns the parts of `text` between separators, at most `limit` + 1 if it is not negative.
List split_text(std::string_view text, std::string_view separator, i64 limit, bool from_end, WorkBudget& budget) {
  check_input(!separator.empty(), "split: the separator is empty");
  std::vector<Value> parts;
  while (limit < 0 || std::ssize(parts) < limit) {
    const std::size_t at = from_end ? find_last_part(text, separator, budget) : find_part(text, separator);
    if (at == std::string_view::npos) break;
    budget.spend(WorkBudget::kElement);
    const std::string_view rest = from_end ? text.substr(0, at) : text.substr(at + separator.size());
    const std::string_view part = from_end ? text.substr(at + separator.size()) : text.substr(0, at);
    parts.emplace_back(std::string(part));
    text = rest;
  }
  parts.emplace_back(std::string(text));
  if (from_end) std::ranges::reverse(parts);
  return parts;
}

/// Returns the words of `text` between white space; the last one is the rest after `limit` words.
List split_words(std::string_view text, i64 limit, WorkBudget& budget) {
  List words;
  budget.spend(text.size(), 8);
  for (std::string_view rest = without_space(text); !rest.empty();) {
    if (limit >= 0 && std::ssize(words) == limit) {
      words.emplace_back(std::string(rest));
      break;
    }
    budget.spend(WorkBudget::kElement);
    std::size_t size = 0;
    while (size < rest.size() && space_at_start(rest.substr(size)) == 0) ++size;
    words.emplace_back(std::string(rest.substr(0, size)));
    rest = without_space(rest.substr(size));
  }
  return words;
}

List split_lines(std::string_view text, WorkBudget& budget) {
  List lines;
  while (!text.empty()) {
    budget.spend(WorkBudget::kElement);
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
    text.remove_prefix(text.starts_with("\r\n") ? 2 : text.empty() ? 0 : 1);
  }
  return lines;
}

Value split_method(const std::string& text, const Arguments& arguments, bool from_end) {
  const Value* separator = arguments.find(0, "sep");
  const Value* limit = arguments.find(1, "maxsplit");
  const i64 max = limit ? limit->integer() : -1;
  if (separator && !separator->is_none()) return split_text(text, separator->text(), max, from_end, arguments.budget);
  check_input(!from_end || max < 0, "rsplit: maxsplit without a separator is not supported");
  return split_words(text, max, arguments.budget);
}

/// Returns true if `text` has the affix, or one of a list of affixes.
bool has_affix(const std::string& text, const Value& affix, bool at_start) {
  if (affix.is_list())
    return std::ranges::any_of(affix.list(), [&](const Value& one) { return has_affix(text, one, at_start); });
  return at_start ? text.starts_with(affix.text()) : text.ends_with(affix.text());
}

/// Returns the index, in characters, of a part of the text; -1 if the text does not contain it.
i64 find_text(const std::string& text, const std::string& part, bool from_end, WorkBudget& budget) {
  const std::size_t at = from_end ? find_last_part(text, part, budget) : find_part(text, part);
  return at == std::string_view::npos ? -1 : count_characters(std::string_view(text).substr(0, at));
}

bool consists_of(const std::string& text, bool (*is_one)(char)) {
  return !text.empty() && std::ranges::all_of(text, is_one);
}

std::string strip_with(const std::string& text, const Arguments& arguments, bool left, bool right) {
  const Value* chars = arguments.find(0, "chars");
  if (chars) arguments.budget.spend(32 * chars->size());
  return strip(text, chars && !chars->is_none() ? chars->text() : "", left, right);
}

std::string join_method(const std::string& separator, const Arguments& arguments) {
  std::vector<std::string> parts;
  for (const Value& item : arguments.at(0, "iterable").elements(arguments.budget)) parts.push_back(item.text());
  return join_texts(parts, separator);
}

using Method = Value (*)(const std::string& text, const Arguments& arguments);

const std::map<std::string, Method, std::less<>>& methods() {
  static const std::map<std::string, Method, std::less<>> table{
      {"capitalize", [](const std::string& t, const Arguments&) { return Value(capitalize(t)); }},
      {"count",
       [](const std::string& t, const Arguments& a) {
         return Value(static_cast<i64>(split_text(t, a.at(0, "sub").text(), -1, false, a.budget).size()) - 1);
       }},
      {"endswith",
       [](const std::string& t, const Arguments& a) { return Value(has_affix(t, a.at(0, "suffix"), false)); }},
      {"find", [](const std::string& t,
                  const Arguments& a) { return Value(find_text(t, a.at(0, "sub").text(), false, a.budget)); }},
      {"isalpha", [](const std::string& t, const Arguments&) { return Value(consists_of(t, is_letter)); }},
      {"isdigit", [](const std::string& t,
                     const Arguments&) { return Value(consists_of(t, [](char c) { return c >= '0' && c <= '9'; })); }},
      {"isspace", [](const std::string& t, const Arguments&) { return Value(!t.empty() && strip(t).empty()); }},
      {"join", [](const std::string& t, const Arguments& a) { return Value(join_method(t, a)); }},
      {"lower", [](const std::string& t, const Arguments&) { return Value(lower(t)); }},
      {"lstrip", [](const std::string& t, const Arguments& a) { return Value(strip_with(t, a, true, false)); }},
      {"removeprefix",
       [](const std::string& t, const Arguments& a) {
         return Value(t.starts_with(a.at(0, "prefix").text()) ? t.substr(a.at(0, "prefix").text().size()) : t);
       }},
      {"removesuffix",
       [](const std::string& t, const Arguments& a) {
         return Value(t.ends_with(a.at(0, "suffix").text()) ? t.substr(0, t.size() - a.at(0, "suffix").text().size())
                                                            : t);
       }},
      {"replace",
       [](const std::string& t, const Arguments& a) {
         return Value(replace_text(t, a.at(0, "old").text(), a.at(1, "new").text(),
                                   a.find(2, "count") ? a.at(2, "count").integer() : -1));
       }},
      {"rfind", [](const std::string& t,
                   const Arguments& a) { return Value(find_text(t, a.at(0, "sub").text(), true, a.budget)); }},
      {"rsplit", [](const std::string& t, const Arguments& a) { return split_method(t, a, true); }},
      {"rstrip", [](const std::string& t, const Arguments& a) { return Value(strip_with(t, a, false, true)); }},
      {"split", [](const std::string& t, const Arguments& a) { return split_method(t, a, false); }},
      {"splitlines", [](const std::string& t, const Arguments& a) { return Value(split_lines(t, a.budget)); }},
      {"startswith",
       [](const std::string& t, const Arguments& a) { return Value(has_affix(t, a.at(0, "prefix"), true)); }},
      {"strip", [](const std::string& t, const Arguments& a) { return Value(strip_with(t, a, true, true)); }},
      {"title", [](const std::string& t, const Arguments&) { return Value(title(t)); }},
      {"upper", [](const std::string& t, const Arguments&) { return Value(upper(t)); }},
  };
  return table;
}

}  // namespace

std::string upper(std::string_view text) {
  std::string result;
  icu::UnicodeString::fromUTF8({text.data(), static_cast<i32>(text.size())})
      .toUpper(icu::Locale::getRoot())
      .toUTF8String(result);
  return result;
}

std::string lower(std::string_view text) {
  std::string result;
  icu::UnicodeString::fromUTF8({text.data(), static_cast<i32>(text.size())})
      .toLower(icu::Locale::getRoot())
      .toUTF8String(result);
  return result;
}

std::string capitalize(std::string_view text) {
  check_ascii(text, "capitalize");
  return upper(text.substr(0, 1)) + lower(text.substr(std::min<std::size_t>(1, text.size())));
}

std::string title(std::string_view text) {
  check_ascii(text, "title");
  std::string result = lower(text);
  bool is_inside = false;
  for (char& c : result) {
    if (!is_inside && is_letter(c)) c = static_cast<char>(c - 32);
    is_inside = is_letter(c);
  }
  return result;
}

std::string strip(std::string_view text, std::string_view chars, bool left, bool right) {
  const std::vector<std::string_view> all = characters(chars);
  const std::set<std::string_view> removed(all.begin(), all.end());
  const auto is_stripped = [&](std::string_view character) {
    return chars.empty() ? space_at_start(character) > 0 : removed.contains(character);
  };
  while (left && !text.empty()) {
    const std::string_view first = characters(text.substr(0, 4)).front();
    if (!is_stripped(first)) break;
    text.remove_prefix(first.size());
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<u8>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_stripped(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

std::string replace_text(std::string_view text, std::string_view old, std::string_view replacement, i64 count) {
  std::string result;
  for (; count != 0; --count) {
    if (old.empty() && text.empty()) {
      result += replacement;
      return result;
    }
    // Python replaces the empty text before each character and at the end.
    const std::size_t at = old.empty() ? 0 : find_part(text, old);
    if (at == std::string_view::npos) break;
    const std::size_t kept = old.empty() ? characters(text.substr(0, 4)).front().size() : 0;
    result.append(text.substr(0, at)).append(replacement).append(text.substr(at, kept));
    text.remove_prefix(at + old.size() + kept);
    check_text_size(result.size(), "replace");
  }
  return result.append(text);
}

std::string join_texts(const std::vector<std::string>& parts, const std::string& separator) {
  std::size_t size = parts.empty() ? 0 : (parts.size() - 1) * separator.size();
  for (const std::string& part : parts) size += part.size();
  check_text_size(size, "join");
  return join(parts, separator);
}

std::optional<Value> call_text_method(const std::string& text, const std::string& name, const Arguments& arguments) {
  const auto it = methods().find(name);
  if (it == methods().end()) return std::nullopt;
  return it->second(text, arguments);
}

}  // namespace mcpp::jinja
