// All layouts of a number of ranks that are worth a look.
#pragma once
#include <functional>

#include "plan/places.h"
#include "plan/search.h"

namespace mcpp {

/// Calls f on every layout that the rules of parallel/layout.h and parallel/pp/schedule_kind.h accept, in a fixed
/// order, with states and weights at `places` and activations on the device.
void for_each_layout(const Hardware& hardware, const Workload& work, const SearchLimits& limits,
                     const std::function<void(const Layout&)>& f, const Places& places = {});

/// Ways to round what ranks of a layout send, beside the workload's, that are worth a look: bytes for links that are
/// not the nearest, and sums of gradients in bf16.
std::vector<Rounding> other_roundings(const Hardware& hardware, const Workload& work, const Layout& layout);

/// Whether for_each_layout() has any.
bool has_layouts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

/// Every reason why `limits` allow no layout at all, whatever the memory; empty when there may be some.
std::vector<std::string> limit_conflicts(const Hardware& hardware, const Workload& work, const SearchLimits& limits);

}  // namespace mcpp
