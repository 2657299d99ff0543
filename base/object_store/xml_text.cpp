#include "base/object_store/xml_text.h"

#include <array>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::array<std::pair<std::string_view, char>, 5> kEntities{
    {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};

/// Decodes the entity that `text` begins with and removes it. Returns an unknown one unchanged.
std::string take_entity(std::string_view& text) {
  for (const auto& [entity, character] : kEntities) {
    if (!text.starts_with(entity)) continue;
    text.remove_prefix(entity.size());
    return {character};
  }
  const std::size_t end = text.find(';');
  const std::string_view number = text.substr(0, end);
  if (end != std::string_view::npos && number.starts_with("&#") && !number.starts_with("&#x")) {
    if (const auto code = parse_number<int>(number.substr(2)); code && *code > 0 && *code < 128) {
      text.remove_prefix(end + 1);
      return {static_cast<char>(*code)};
    }
  }
  text.remove_prefix(1);
  return "&";
}

}  // namespace

std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name) {
  const std::string open = str("<", name, ">"), close = str("</", name, ">");
  std::vector<std::string_view> elements;
  for (std::size_t at = 0; (at = text.find(open, at)) != std::string_view::npos;) {
    at += open.size();
    const std::size_t end = text.find(close, at);
    if (end == std::string_view::npos) break;
    elements.push_back(text.substr(at, end - at));
    at = end + close.size();
  }
  return elements;
}

std::string first_xml_value(std::string_view text, std::string_view name) {
  const std::vector<std::string_view> elements = xml_elements(text, name);
  if (elements.empty()) return {};
  std::string value;
  for (std::string_view rest = elements[0]; !rest.empty();) {
    if (rest[0] == '&') {
      value += take_entity(rest);
      continue;
    }
    value += rest[0];
    rest.remove_prefix(1);
  }
  return value;
}

std::string to_xml(std::string_view text) {
  std::string result;
  for (const char c : text) {
    std::string_view replaced(&c, 1);
    for (const auto& [entity, character] : kEntities)
      if (c == character) replaced = entity;
    result += replaced;
  }
  return result;
}

}  // namespace mcpp
