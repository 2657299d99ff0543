// How a training gains from more ranks.
#pragma once
#include "plan/search.h"

namespace mcpp {

struct ScalingPoint {
  i64 world_size = 0;
  i64 global_batch_size = 0;
  SearchResult found;         ///< `best` is empty where nothing fits
  std::string conflict = {};  ///< why there is no layout at all, whatever the memory
  double efficiency = 0;      ///< tokens per second and rank, of those of the first point that fits
};

/// The best layouts of each world. Strong scaling leaves the batch as it is; weak scaling has the batch grow with the
/// ranks, from work.global_batch_size for the first of `worlds`. Worlds that no layout divides have none.
std::vector<ScalingPoint> scaling(const Hardware& hardware, const Implementation& program, const Workload& work,
                                  const SearchLimits& limits, const std::vector<i64>& worlds, bool is_weak);

/// The part f of the work that more ranks do not share, by Amdahl's law 1 / (f + (1 - f) / n) between the first and the
/// last point that fit; of weak scaling it has no meaning.
double serial_part(const std::vector<ScalingPoint>& points);

}  // namespace mcpp
