// Coordinate check (Yang et al. 2022, appendix D.1): sizes of activations at several widths of a model after a few
// training steps. With a parametrization that transfers hyperparameters, neither they nor their changes depend on the
// width.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Mean absolute values of one tensor at all widths.
struct CoordinateRow {
  std::string name;             ///< "layer 0", ..., "logits"
  std::vector<double> sizes;    ///< of the values after the last step
  std::vector<double> changes;  ///< of the difference from the values before the first step

  bool operator==(const CoordinateRow&) const = default;
};

struct CoordinateCheck {
  std::vector<i64> widths;
  std::vector<CoordinateRow> rows;
};

/// Exponent below which a power of the width counts as flat.
inline constexpr double kFlatExponent = 0.25;

/// Returns the exponent p of the power law c width^p that fits the values best: the slope of their logarithms.
double fit_exponent(const std::vector<i64>& widths, const std::vector<double>& values);

/// Returns the configuration with a different hidden_size. Multiplies the widths of MLPs and experts and the number of
/// heads by the same ratio; the width of a head stays. The base width of muP, if not set, is the hidden_size of
/// `config`. Without dropout, because its noise would not be a property of the weights. Throws BadInput if a width is
/// not an integer.
Config config_at_width(const Config& config, i64 width);

/// Trains a new model of each width for `steps` steps on one batch of random tokens, with the constant learning rate
/// and weight decay of the configuration, and averages over `seeds` initializations.
CoordinateCheck run_coordinate_check(const Config& config, const std::vector<i64>& widths, i64 steps, i64 seeds,
                                     const World& world);

/// Returns a table of the rows with the exponents of changes, and a sentence that states whether they are flat.
std::string coordinate_table(const CoordinateCheck& check);
/// Returns a chart of sizes and changes against the width, with logarithmic axes, as SVG.
std::string coordinate_chart(const CoordinateCheck& check, const std::string& title);

}  // namespace mcpp
