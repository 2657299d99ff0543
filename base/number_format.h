// Locale-independent formatting of numbers. Functions document whether the round trip is bitwise identical.
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Formats with `digits` after the point: "12.300"; "nan", "inf" and "-inf" for non-finite values.
std::string fixed(double value, int digits);
/// Formats with `digits` significant digits: "29.43", "1.500", "12350".
std::string significant(double value, int digits);
/// Formats as Python's "{:.6E}": "1.230000E-04".
std::string scientific(double value, int digits);
/// Returns the shortest text that reads back to the same double: "0.1", "1e-05", "12.0". The text never looks like an
/// integer.
std::string shortest(double value);
/// Right-aligns `text` in `width` columns.
std::string pad_left(std::string_view text, std::size_t width);
/// Left-aligns `text` in `width` columns.
std::string pad_right(std::string_view text, std::size_t width);

}  // namespace mcpp
