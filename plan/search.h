// Search for the layouts that train fastest, or that need the least memory, on a given number of ranks.
#pragma once
#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "plan/cost/implementation.h"
#include "plan/cost/workload.h"
#include "plan/layout_memory.h"
#include "plan/step/step_time.h"

namespace mcpp {

// Objective that a plan minimizes.

/// Objective of a search. For one world size, `Memory` selects the layout that needs the least memory per rank; all
/// others select the fastest layout. Among several world sizes, `Time` selects the fastest, `Memory` the one that needs
/// the least memory per rank, `DeviceHours` the one with the fewest device hours for the same tokens, and `Deadline`
/// the smallest that meets the deadline.
enum class Objective : u8 { Time, Memory, DeviceHours, Deadline };

template <>
struct EnumNames<Objective> {
  static constexpr std::array<std::string_view, 4> value{"time", "memory", "device_hours", "deadline"};
};

// Layout tags: properties that users compare layouts by.

/// Tag of a layout, such as "tp 8", "recompute full" or "weights twice". A search tags many layouts but prints few of
/// them, so the text is composed on demand. The views refer to constants.
struct LayoutTag {
  std::string_view name;
  std::string_view value;  ///< text of the value; if empty, the value is `number`
  i64 number = 0;

  auto operator<=>(const LayoutTag&) const = default;
  std::string text() const;
};

/// Returns the tags of a layout.
std::vector<LayoutTag> layout_tags(const Layout& layout, bool has_experts);

/// Natural order of tag texts: "tp 2" before "tp 16".
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const;
};

// Minimization of the number of recomputed layers per stage.

/// Returns `layout`, which recomputes all its layers and fits, with the minimum number of recomputed layers per stage
/// that still fits. Returns std::nullopt if no layer or every layer needs to be recomputed. Does not offload.
std::optional<Layout> minimize_recompute(LayoutMemory& memory, Layout layout, const ModelConfig& model,
                                         double device_bytes);

/// User limits of a search. The search chooses values that are 0. Members are named as in Layout.
struct SearchLimits {
  i64 world_size = 1;
  i64 tp = 0, cp = 0, pp = 0, ep = 0, micro_batch_size = 0;
  i64 max_micro_batch_size = 8;
  double memory_bytes = 0;  ///< memory that a rank may use
  Objective objective = Objective::Time;
  /// Also considers layouts with lossy formats that the workload does not use (CommFormats).
  bool allow_lossy_comm = false;
  /// Considers only layouts that can be predicted for this program (unpredictable_settings()).
  Implementation implementation = Implementation::MegatronCpp;
  int keep = 5;  ///< number of layouts to return
};

/// Returns the number of parallel axes and of optional mechanisms that a layout uses, such as uneven stages.
int complexity(const Layout& layout);

struct Candidate {
  Layout layout;
  StepTime time;
  MemoryEstimate memory;    ///< estimate for the rank that needs the most
  std::string reason = {};  ///< why a layout of SearchResult::best is not the first; empty for the first
};
/// Returns how much slower a layout is than a faster one, and the part of its step that grows most.
std::string slowdown_reason(const Hardware& hardware, const Candidate& slow, const Candidate& fast);

/// Best layout with a given tag, and the reason why it is not the best layout overall.
struct Alternative {
  std::string kind;  ///< "tp 16", "ZeRO 3"
  Candidate candidate;
  bool fits = true;
  std::string reason;
};

struct SearchResult {
  std::vector<Candidate> best;  ///< best layouts first, without duplicates; empty if nothing fits
  std::vector<Alternative> alternatives;
  /// Simplest layout that is at most 2 % slower than the fastest, a difference below the accuracy of predictions. Empty
  /// if none is simpler than the fastest, or if the objective is memory.
  std::optional<Candidate> simpler;
  Candidate smallest;  ///< layout that needs the least memory
  i64 possible = 0, fitting = 0, simulated = 0;

  /// Returns the layout to use. `best` must not be empty.
  const Candidate& preferred() const { return simpler ? *simpler : best.front(); }
};

/// Finds the best layouts under `limits`. Deterministic. Throws BadInput with all reasons if the limits contradict the
/// model or each other. Offloading is used only for layouts that do not fit otherwise, and only to tiers with known
/// rates. Activations are offloaded first, to host memory or disk; if still no layout fits, optimizer states and then
/// weights (layout_memory.h). Objective::Memory minimizes device memory; layouts that keep activations on the device
/// take precedence, and ties go to the faster layout. If nothing fits, `best` is empty and `smallest` is the layout
/// that needs the least device memory.
SearchResult search_layouts(const Hardware& hardware, const KernelTraits& program, const Workload& work,
                            const SearchLimits& limits);

/// Returns true if any layout fits.
bool any_layout_fits(const Hardware& hardware, const Workload& work, const SearchLimits& limits);
/// Returns the smallest world size, limits.world_size times a power of two, for which a layout fits; 0 if even the
/// largest world size that the links connect is too small.
i64 smallest_world_size(const Hardware& hardware, const Workload& work, SearchLimits limits);

}  // namespace mcpp
