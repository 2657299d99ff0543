#include "parallel/ep/dispatch_plan.h"

#include <numeric>

namespace mcpp {
namespace {

/// Returns consecutive parts of these sizes.
std::vector<Part> parts_of(std::span<const i64> sizes) {
  std::vector<Part> parts;
  i64 begin = 0;
  for (const i64 size : sizes) {
    parts.push_back({begin, size});
    begin += size;
  }
  return parts;
}

/// Returns the permutation of received rows from [ranks][local experts] to [local experts][ranks] order.
std::vector<i32> order_by_expert(const std::vector<std::vector<i64>>& rows_of_ranks,
                                 const std::vector<Part>& received) {
  std::vector<std::vector<Part>> runs;
  for (const std::vector<i64>& rows : rows_of_ranks) runs.push_back(parts_of(rows));
  std::vector<i32> order;
  i64 place = 0;
  for (std::size_t e = 0; e < runs[0].size(); ++e) {
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const Part& run = runs[r][e];
      for (const i64 number : {received[r].first + run.first, place, run.count})
        order.push_back(static_cast<i32>(number));
      place += run.count;
    }
  }
  return order;
}

}  // namespace

DispatchPlan plan_dispatch(std::span<const i32> counts, i64 num_experts, int rank, int parts, int part) {
  const std::size_t all = static_cast<std::size_t>(num_experts),
                    num_local_experts = all / static_cast<std::size_t>(parts);
  const std::size_t ranks = counts.size() / all, first = num_local_experts * static_cast<std::size_t>(part);
  MCPP_CHECK(counts.size() == ranks * all && num_local_experts * static_cast<std::size_t>(parts) == all &&
                 static_cast<std::size_t>(rank) < ranks,
             counts.size(), " counts of ", num_experts, " experts in ", parts, " parts, for rank ", rank);
  const auto sum = [&](std::size_t of_rank, std::size_t begin) {
    const std::span<const i32> experts = counts.subspan(of_rank * all + begin, num_local_experts);
    return std::accumulate(experts.begin(), experts.end(), i64{0});
  };
  DispatchPlan plan;
  std::vector<i64> sent, received;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p)
    sent.push_back(sum(static_cast<std::size_t>(rank), p * num_local_experts));
  plan.choices = std::accumulate(sent.begin(), sent.end(), i64{0});
  plan.sent = parts_of(sent);
  std::vector<std::vector<i64>> rows_of_ranks;
  plan.rows.assign(num_local_experts, 0);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::span<const i32> local_counts = counts.subspan(r * all + first, num_local_experts);
    rows_of_ranks.emplace_back(local_counts.begin(), local_counts.end());
    for (std::size_t e = 0; e < num_local_experts; ++e) plan.rows[e] += local_counts[e];
    received.push_back(sum(r, first));
  }
  plan.received = parts_of(received);
  plan.runs = order_by_expert(rows_of_ranks, plan.received);
  return plan;
}

}  // namespace mcpp
