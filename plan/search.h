// Finds the layouts of a number of ranks that train fastest, or need least memory.
#pragma once
#include <string>
#include <vector>

#include "plan/objective.h"
#include "plan/step/step_time.h"

namespace mcpp {

/// What a user asks for; 0 = to be found. Names are those of the configuration.
struct SearchLimits {
  i64 world_size = 1;
  i64 tensor_model_parallel_size = 0;
  i64 context_parallel_size = 0;
  i64 expert_model_parallel_size = 0;
  i64 pipeline_model_parallel_size = 0;
  i64 micro_batch_size = 0;
  i64 most_micro_batch_size = 8;
  double memory_bytes = 0;  ///< that a rank may use
  Objective objective = Objective::Time;
  /// Also layouts that round what travels where the workload does not (Rounding).
  bool other_numbers = false;
  int keep = 5;  ///< layouts to be found
};

struct Candidate {
  Layout layout;
  StepTime time;
  MemoryEstimate memory;  ///< of the rank that needs most
};

/// The best layout of a kind that a user may ask about, and what keeps it from being the best of all.
struct Alternative {
  std::string kind;  ///< "tp 16", "ZeRO 3"
  Candidate candidate;
  bool fits = true;
  std::string reason;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< the best first, of equally good ones one; empty when nothing fits
  std::vector<Alternative> alternatives;
  Candidate smallest;  ///< the one that needs least memory
  i64 possible = 0, fitting = 0, simulated = 0;
};

/// Throws BadInput, with all reasons, when the limits contradict the model or one another. Activations wait in the
/// memory of the host, or on its disks, in layouts that do not fit otherwise. Where nothing fits with the optimizer's
/// states on the devices they go there, and then the weights (places.h); the hardware must know how fast these are.
/// Least memory is that of a device: of layouts with their activations there, and only where none fits so of others; of
/// equal ones the fastest. Nothing that fits even so is not an error: `best` is empty then, and `smallest` the one that
/// needs least of a device. The same every time.
SearchResult search_layouts(const Hardware& hardware, const Implementation& program, const Workload& work,
                            const SearchLimits& limits);

/// Whether some layout fits.
bool fits_somehow(const Hardware& hardware, const Workload& work, const SearchLimits& limits);
/// The smallest world, a multiple of limits.world_size by a power of two, for which some layout fits; 0 when there is
/// none that the links join.
i64 smallest_world(const Hardware& hardware, const Workload& work, SearchLimits limits);

}  // namespace mcpp
