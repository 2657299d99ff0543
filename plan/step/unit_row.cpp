#include "plan/step/unit_row.h"

#include <algorithm>
#include <utility>

namespace mcpp {
namespace {

/// Exposed gathers of the weights that `of` selects.
double forward_waits(const std::vector<RowUnit>& row, const WeightTraffic& traffic, Transfer UnitTraffic::*of) {
  double waits = 0, before = 0;
  for (const RowUnit& unit : row) {
    const Transfer& weights = unit.traffic.*of;
    waits += traffic.beside(unit.traffic.is_ahead ? before : 0, weights.links) + weights.device;
    before = unit.forward;
  }
  return waits;
}

/// Exposed communication until the last unit has computed.
double backward_waits(const std::vector<RowUnit>& row, const WeightTraffic& traffic) {
  double waits = 0, before = 0;
  double going = 0, next = 0;  // reductions concurrent with `before`, and reductions it leaves for the next unit
  for (auto unit = row.rbegin(); unit != row.rend(); ++unit) {
    const UnitTraffic& t = unit->traffic;
    waits += traffic.beside(before, t.backward.links + going) + t.backward.device + t.sums.device;
    before = unit->backward;
    going = std::exchange(next, t.sums.links);
  }
  return waits + traffic.beside(before, going);
}

}  // namespace

RowWaits waits_of(const std::vector<RowUnit>& row, const WeightTraffic& traffic) {
  if (row.empty()) return {};
  double computed = 0, gathered = 0;
  for (const RowUnit& unit : row) computed += unit.forward, gathered += unit.traffic.forward.links;
  const double last = row.front().traffic.sums.links,
               last_beside = traffic.beside(std::max(0.0, computed - gathered), last),
               first = forward_waits(row, traffic, &UnitTraffic::first),
               forward = forward_waits(row, traffic, &UnitTraffic::forward);
  return {.forward = forward + last_beside,
          .backward = backward_waits(row, traffic),
          .ends = first - forward + last - last_beside};
}

}  // namespace mcpp
