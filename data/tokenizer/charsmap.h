// Normalisation tables inside sentencepiece models. The library follows them without looking where they lead, so that a
// damaged or hostile model would have it read, or crash, outside of them.
#pragma once
#include <string>
#include <string_view>

namespace mcpp {

/// Throws BadInput, naming `source`, unless every table in the model (a serialized ModelProto of sentencepiece) keeps
/// to itself. What else may be wrong with the model, the library finds.
void check_charsmaps(std::string_view model, const std::string& source);

}  // namespace mcpp
