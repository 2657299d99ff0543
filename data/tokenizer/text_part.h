// Position of a text within the document that it is a part of.
#pragma once
#include <string_view>

namespace mcpp {

/// Position of a part of a document. What a model adds before or after a text, such as Llama 2's space, is added only
/// at the beginning and end of the document.
struct TextPart {
  bool begins = true, ends = true;  ///< at the beginning or end of the document
  std::string_view before = {};     ///< last characters of the document before this part, for models that join spaces
};

}  // namespace mcpp
