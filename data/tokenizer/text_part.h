// Position of a text within the document that it is a part of.
#pragma once
#include <string_view>

namespace mcpp {

/// Documents that are encoded in parts get what a model puts before or after a text, such as Llama 2's space, only
/// where the document begins or ends.
struct TextPart {
  bool begins = true, ends = true;  ///< the document
  std::string_view before = {};     ///< last characters of the document before this part, for models that join spaces
};

}  // namespace mcpp
