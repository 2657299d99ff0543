// One list of fields per configuration struct drives parsing, --help, --print-config, validation and the copy in the
// checkpoint. A struct offers
//
//   template <class Self, class Visitor>
//   static void fields(Self& self, Visitor& visit) {
//     visit("num_layers", self.num_layers, "number of transformer layers", at_least(1));
//     visit("normalization", self.normalization, "LayerNorm or RMSNorm");      // an enum with an EnumNames
//   }
//
// where Self is the struct or const struct. Members are bool, i64, double, std::string, an enum, or a std::vector,
// OneOrList or PerLayer of those, or a std::vector of structs with fields. Members of the latter may be std::optional,
// which a setting fills in. A visitor is any object callable as visit(name, member, help, constraint = {}).
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Range of values a field accepts, in addition to its type. Applies to each element of a vector.
struct Constraint {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_is_excluded = false;
  bool max_is_excluded = false;

  bool accepts(double value) const {
    return !std::isnan(value) && (min_is_excluded ? value > min : value >= min) &&
           (max_is_excluded ? value < max : value <= max);
  }
  /// Returns "at least 1" or "greater than 0 and below 1"; empty if every value is accepted.
  std::string describe() const;
};

inline Constraint at_least(double min) {
  return {.min = min};
}
inline Constraint greater_than(double min) {
  return {.min = min, .min_is_excluded = true};
}
inline Constraint between(double min, double max) {
  return {.min = min, .max = max};
}
/// Accepts [min, max), such as a probability that must be less than 1.
inline Constraint between_excluding_max(double min, double max) {
  return {.min = min, .max = max, .max_is_excluded = true};
}

/// Names of the values of an enum used in a configuration, in the order 0, 1, 2, ... Specialize it next to the enum:
///   template <> struct EnumNames<Normalization> { static constexpr std::array<std::string_view, 2> value{"LayerNorm",
///   "RMSNorm"}; };
template <class E>
struct EnumNames;

template <class E>
constexpr std::string_view enum_name(E e) {
  return EnumNames<E>::value[static_cast<std::size_t>(e)];
}

/// Setting with one value or several. In TOML, a value or a list that is not empty.
template <class T>
class OneOrList {
 public:
  using value_type = T;
  OneOrList(T value = {}) : values_{std::move(value)} {}  // NOLINT(google-explicit-constructor): one value
  explicit OneOrList(std::vector<T> values) : values_(std::move(values)) {}

  const T& first() const { return values_.at(0); }
  const T& max() const { return *std::ranges::max_element(values_); }
  /// Returns true unless there is exactly one value.
  bool is_list() const { return values_.size() != 1; }
  const std::vector<T>& values() const { return values_; }
  bool operator==(const OneOrList&) const = default;

 private:
  std::vector<T> values_;
};

/// Setting with one value for all layers of a model, or a list with a value per layer.
template <class T>
class PerLayer : public OneOrList<T> {
 public:
  using OneOrList<T>::OneOrList;

  const T& of_layer(i64 layer) const {
    return this->is_list() ? this->values().at(static_cast<std::size_t>(layer)) : this->first();
  }
  bool operator==(const PerLayer&) const = default;
};
template <class T>
PerLayer(std::vector<T>) -> PerLayer<T>;

template <class T>
struct is_one_or_list : std::false_type {};
template <class T>
struct is_one_or_list<OneOrList<T>> : std::true_type {};
template <class T>
struct is_one_or_list<PerLayer<T>> : std::true_type {};
template <class T>
struct is_vector : std::false_type {};
template <class T>
struct is_vector<std::vector<T>> : std::true_type {};
template <class T>
struct is_optional : std::false_type {};
template <class T>
struct is_optional<std::optional<T>> : std::true_type {};

}  // namespace mcpp
