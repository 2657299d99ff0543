// Variants of a configuration, from the [[variant]] tables of a file:
//
//   [[variant]]
//   name = "bf16"
//
//   [[variant]]
//   name = "mxfp8"
//   max_difference = 0.25
//   [variant.training]
//   fp8 = "e4m3"
//   fp8_recipe = "mxfp8"
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Configuration that differs from a base configuration in some keys.
struct Variant {
  std::string name;
  std::optional<double> max_difference;  ///< largest accepted difference of the loss from the first variant, in percent
  Config config;                         ///< complete configuration
};

/// Parses TOML text with at least two variants of `base`, which has no stages; `file` is the name in messages. Throws
/// one BadInput error with every problem of every variant.
std::vector<Variant> parse_variants(const Config& base, std::string_view toml, const std::string& file);

}  // namespace mcpp
