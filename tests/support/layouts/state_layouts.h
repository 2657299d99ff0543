// Layouts that differ in how ranks share the optimizer states.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/layouts/layout_run.h"

namespace mcpp::test {

inline const std::vector<RunLayout> kStateLayouts{
    {"one_rank", {}},
    {"dp2", {.dp = 2}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero2", {.dp = 2, .zero_stage = 2}},
    {"dp4_hsdp_zero3", {.dp = 4, .zero_stage = 3, .instances = 2}},
    {"tp2_sp_pp2", {.tp = 2, .pp = 2, .sequence_parallel = true}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
    {"cp2_dp2_zero3", {.cp = 2, .dp = 2, .zero_stage = 3}},
};

/// Returns the layouts with these names, in the order of the names.
inline std::vector<RunLayout> named(const std::vector<RunLayout>& list, const std::vector<std::string>& names) {
  std::vector<RunLayout> layouts;
  for (const std::string& name : names) {
    const auto layout = std::ranges::find(list, name, &RunLayout::name);
    if (layout == list.end()) throw std::invalid_argument("no layout is called " + name);
    layouts.push_back(*layout);
  }
  return layouts;
}

}  // namespace mcpp::test
