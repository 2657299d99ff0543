#include "plan/step/exposed_comm.h"

#include <algorithm>
#include <utility>

namespace mcpp {
namespace {

/// Exposed gathers of the weights that `of` selects.
double exposed_forward_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic, Transfer UnitTraffic::*of) {
  double waits = 0, before = 0;
  for (const UnitCost& unit : row) {
    const Transfer& weights = unit.traffic.*of;
    waits += traffic.exposed_seconds(unit.traffic.is_ahead ? before : 0, weights.links) + weights.device;
    before = unit.forward;
  }
  return waits;
}

/// Exposed communication until the last unit has computed.
double exposed_backward_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic) {
  double waits = 0, before = 0;
  double in_flight = 0, next = 0;  // reductions concurrent with `before`, and reductions it leaves for the next unit
  for (auto unit = row.rbegin(); unit != row.rend(); ++unit) {
    const UnitTraffic& t = unit->traffic;
    waits += traffic.exposed_seconds(before, t.backward.links + in_flight) + t.backward.device + t.sums.device;
    before = unit->backward;
    in_flight = std::exchange(next, t.sums.links);
  }
  return waits + traffic.exposed_seconds(before, in_flight);
}

}  // namespace

ExposedComm exposed_comm(const std::vector<UnitCost>& row, const WeightTraffic& traffic) {
  if (row.empty()) return {};
  double computed = 0, gathered = 0;
  for (const UnitCost& unit : row) computed += unit.forward, gathered += unit.traffic.forward.links;
  const double last = row.front().traffic.sums.links,
               last_beside = traffic.exposed_seconds(std::max(0.0, computed - gathered), last),
               first = exposed_forward_comm(row, traffic, &UnitTraffic::first),
               forward = exposed_forward_comm(row, traffic, &UnitTraffic::forward);
  return {.forward = forward + last_beside,
          .backward = exposed_backward_comm(row, traffic),
          .boundary_exposed = first - forward + last - last_beside};
}

}  // namespace mcpp
