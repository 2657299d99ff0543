// Strong and weak scaling of training.
#pragma once
#include <optional>

#include "plan/scaling/training_cost.h"
#include "plan/search.h"

namespace mcpp {

struct ScalingPoint {
  i64 world_size = 0;
  i64 global_batch_size = 0;
  SearchResult search;        ///< `best` is empty if nothing fits
  std::string conflict = {};  ///< why no layout exists, regardless of memory
  double efficiency = 0;      ///< tokens per second and rank, relative to the first point that fits
  TrainingCost cost = {};     ///< cost with the best layout

  bool fits() const { return !search.best.empty(); }
};

struct ScalingRequest {
  std::vector<i64> worlds;  ///< world sizes in ascending order
  /// If true, the batch grows in proportion to the ranks, from the workload's batch at the first of `worlds` (weak
  /// scaling). Otherwise the batch is constant.
  bool is_weak = false;
  double tokens = 1e9;  ///< number of tokens to train on
  Failures failures = {};
};

/// Returns a point for each world size, with the best layouts for limits.objective if there are any.
std::vector<ScalingPoint> scaling(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                                  const SearchLimits& limits, const ScalingRequest& request);

/// Returns the serial fraction f of Amdahl's law, 1 / (f + (1 - f) / n), fitted to the first and the last point that
/// fit in memory. Meaningless for weak scaling.
double serial_fraction(const std::vector<ScalingPoint>& points);

/// Returns the best point for the objective (search.h), breaking ties by speed, among those that take at most
/// `deadline_hours` (0 = no limit). Returns nullptr if no point qualifies.
const ScalingPoint* best_point(const std::vector<ScalingPoint>& points, Objective objective, double deadline_hours);

// Search for the fewest devices that train on a number of tokens within a deadline.

struct Deadline {
  double tokens = 0, hours = 0;
  double price = 0;  ///< price per device hour; 0 = ignored
};

/// Smallest number of devices that meets a deadline.
struct MinDevices {
  std::optional<ScalingPoint> smallest;
  /// Set only if `smallest` is empty: the point with the fewest hours among the world sizes that were tried and fit.
  std::optional<ScalingPoint> fastest;
  /// Set only if `smallest` is empty: lower bound of the hours with the maximum number of devices that the links
  /// connect; 0 = unknown.
  double min_hours = 0;
};

/// Returns the first of the world sizes 1, 2, 4, ... that meets the deadline, or a smaller world size between this one
/// and the previous one, in steps of an eighth. If the limits require an odd factor of the world size, its multiples
/// are tried instead.
MinDevices find_min_devices(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                            const SearchLimits& limits, const Deadline& deadline, const Failures& failures);

}  // namespace mcpp
