// Comparison of the losses that variants of a training run reach. Every variant trains with the same seeds: runs with
// one seed share initial weights and samples, so that the difference of a pair is less random than each loss. The mean
// over the seeds is tested with its standard error.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/statistics.h"
#include "base/types.h"

namespace mcpp {

/// Loss on held-out text after some iterations.
struct HeldOutLoss {
  i64 iteration = 0;
  double loss = 0;

  bool operator==(const HeldOutLoss&) const = default;
};

/// Finished training of one variant with one seed.
struct QualityRun {
  std::string variant;
  i64 seed = 0;
  std::vector<HeldOutLoss> curve;                    ///< losses in the order of the iterations; the last is the result
  std::string failure = {};                          ///< reason why training failed; then `curve` is not used
  double seconds = 0;                                ///< duration
  std::map<std::string, std::string> settings = {};  ///< keys that define the run, with their values in TOML

  /// Returns the final loss. Requires that the run has not failed.
  double loss() const { return curve.back().loss; }
  bool operator==(const QualityRun&) const = default;
};

/// Variant in a comparison.
struct ComparedVariant {
  std::string name;
  std::optional<double> max_difference = {};  ///< largest accepted difference from the baseline in percent
};

/// Runs of all variants, and their differences from the baseline.
struct QualityComparison {
  std::vector<ComparedVariant> variants;  ///< the first is the baseline
  std::vector<QualityRun> runs;

  const ComparedVariant& baseline() const { return variants.front(); }
  /// Returns the run of a variant with this seed that did not fail, or null.
  const QualityRun* find(const std::string& variant, i64 seed) const;
  /// Returns percent_difference() from the baseline for every seed with which both runs are finished, at the end of the
  /// training or, if set, after `iteration` iterations. Omits seeds whose runs were not both evaluated then.
  std::vector<double> differences(const std::string& variant, std::optional<i64> iteration = {}) const;
};

/// Returns 100 (loss / base - 1).
double percent_difference(double loss, double base);
/// Returns text like "+0.125 %".
std::string signed_percent(double value);

/// Returns a table with a row per variant: number of seeds, mean loss, mean difference from the baseline with its
/// standard error and 95 % confidence interval, and a verdict.
std::string quality_table(const QualityComparison& comparison);

/// Returns a chart of the mean differences over the iterations as SVG, with bands of two standard errors.
std::string quality_chart(const QualityComparison& comparison, const std::string& title);

}  // namespace mcpp
