#include "parallel/ep/dispatch_plan.h"

#include <numeric>

namespace mcpp {
namespace {

/// Where each of several parts begins that lie one after another, and the end of the last.
std::vector<i64> begins_of(std::span<const i64> sizes) {
  std::vector<i64> begins{0};
  for (const i64 size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

/// Fills in the rows that this rank sends.
void sort_choices(std::span<const i32> experts, i64 topk, std::span<const i32> counts, DispatchPlan& plan) {
  std::vector<i64> next = begins_of(std::vector<i64>(counts.begin(), counts.end()));
  plan.tokens.resize(static_cast<std::size_t>(next.back()));
  plan.slots.assign(experts.size(), -1);
  for (std::size_t i = 0; i < experts.size(); ++i) {
    if (experts[i] < 0) continue;
    const i64 row = next[static_cast<std::size_t>(experts[i])]++;
    plan.tokens[static_cast<std::size_t>(row)] = static_cast<i32>(static_cast<i64>(i) / topk);
    plan.slots[i] = static_cast<i32>(row);
  }
}

/// Fills in the order of what was received: [ranks][own experts] runs of rows become [own experts][ranks].
void sort_received(const std::vector<std::vector<i64>>& runs, DispatchPlan& plan) {
  const std::size_t ranks = runs.size(), experts = runs[0].size();
  std::vector<std::vector<i64>> begins;
  for (std::size_t r = 0; r < ranks; ++r) {
    begins.push_back(begins_of(runs[r]));
    for (i64& begin : begins.back()) begin += plan.received[r].first;
  }
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t r = 0; r < ranks; ++r) {
      for (i64 row = begins[r][e]; row < begins[r][e] + runs[r][e]; ++row)
        plan.by_expert.push_back(static_cast<i32>(row));
    }
  }
  plan.by_rank.resize(plan.by_expert.size());
  for (std::size_t i = 0; i < plan.by_expert.size(); ++i)
    plan.by_rank[static_cast<std::size_t>(plan.by_expert[i])] = static_cast<i32>(i);
}

}  // namespace

std::vector<i32> count_choices(std::span<const i32> experts, i64 num_experts) {
  std::vector<i32> counts(static_cast<std::size_t>(num_experts), 0);
  for (const i32 expert : experts) {
    if (expert >= 0) ++counts.at(static_cast<std::size_t>(expert));
  }
  return counts;
}

DispatchPlan plan_dispatch(std::span<const i32> experts, i64 topk, std::span<const i32> counts, i64 num_experts,
                           int parts, int part) {
  const std::size_t all = static_cast<std::size_t>(num_experts), own = all / static_cast<std::size_t>(parts);
  const std::size_t ranks = counts.size() / all, first = own * static_cast<std::size_t>(part);
  MCPP_CHECK(counts.size() == ranks * all && own * static_cast<std::size_t>(parts) == all, counts.size(), " counts of ",
             num_experts, " experts in ", parts, " parts");
  DispatchPlan plan;
  const std::vector<i32> mine = count_choices(experts, num_experts);
  sort_choices(experts, topk, mine, plan);
  i64 begin = 0;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) {
    const auto of_part = mine.begin() + static_cast<std::ptrdiff_t>(p * own);
    const i64 count = std::accumulate(of_part, of_part + static_cast<std::ptrdiff_t>(own), i64{0});
    plan.sent.push_back({begin, count});
    begin += count;
  }
  std::vector<std::vector<i64>> runs;
  plan.rows.assign(own, 0);
  begin = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<i64>& run = runs.emplace_back();
    for (std::size_t e = 0; e < own; ++e) {
      run.push_back(counts[r * all + first + e]);
      plan.rows[e] += run.back();
    }
    const i64 count = std::accumulate(run.begin(), run.end(), i64{0});
    plan.received.push_back({begin, count});
    begin += count;
  }
  sort_received(runs, plan);
  return plan;
}

}  // namespace mcpp
