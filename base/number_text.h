// Numbers as text that never depends on the locale, and that reads back to the same bits where it says so.
#pragma once
#include <string>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// "12.300": `digits` after the point; "nan", "inf" and "-inf" for what is not a number.
std::string fixed(double value, int digits);
/// `digits` that count, the first not 0: "29.43", "1.500", "12350".
std::string significant(double value, int digits);
/// "1.230000E-04", as Python's "{:.6E}".
std::string scientific(double value, int digits);
/// The shortest text that reads back to the same double: "0.1", "1e-05", "12.0"; always recognisable as no integer.
std::string shortest(double value);
/// `text` right-aligned in `width` columns.
std::string pad_left(std::string_view text, std::size_t width);
/// `text` left-aligned in `width` columns.
std::string pad_right(std::string_view text, std::size_t width);

}  // namespace mcpp
