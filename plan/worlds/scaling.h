// How a training gains from more ranks.
#pragma once
#include "plan/search.h"
#include "plan/worlds/training_cost.h"

namespace mcpp {

struct ScalingPoint {
  i64 world_size = 0;
  i64 global_batch_size = 0;
  SearchResult found;         ///< `best` is empty where nothing fits
  std::string conflict = {};  ///< why there is no layout at all, whatever the memory
  double efficiency = 0;      ///< tokens per second and rank, of those of the first point that fits
  TrainingCost cost = {};     ///< of the best layout

  bool fits() const { return !found.best.empty(); }
};

struct ScalingRequest {
  std::vector<i64> worlds;  ///< rising
  /// The batch grows with the ranks, from the workload's for the first of `worlds`; else it stays as it is.
  bool is_weak = false;
  double tokens = 1e9;  ///< to train on
  Failures failures = {};
};

/// The best layout of each world, as limits.objective says. Worlds that no layout divides have none.
std::vector<ScalingPoint> scaling(const Hardware& hardware, const Implementation& program, const Workload& work,
                                  const SearchLimits& limits, const ScalingRequest& request);

/// The part f of the work that more ranks do not share, by Amdahl's law 1 / (f + (1 - f) / n) between the first and the
/// last point that fit; of weak scaling it has no meaning.
double serial_part(const std::vector<ScalingPoint>& points);

/// The point that the objective asks for (objective.h), of equal ones the fastest; of those that take at most
/// `deadline_hours`, unless these are 0. Null when none fits, or is in time.
const ScalingPoint* best_point(const std::vector<ScalingPoint>& points, Objective objective, double deadline_hours);

}  // namespace mcpp
