// The subset of XML in the responses of S3: elements without attributes of interest, and text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace mcpp {

/// Returns the contents of all elements `<name>...</name>` of the text, which must not be nested in each other.
std::vector<std::string_view> xml_elements(std::string_view text, std::string_view name);
/// Returns the text of the first element of this name, with entities replaced by their characters; "" if there is none.
std::string first_xml_value(std::string_view text, std::string_view name);
/// Returns the text with the characters that XML reserves replaced by entities.
std::string to_xml(std::string_view text);

}  // namespace mcpp
