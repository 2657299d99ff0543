#include "parallel/ep/assumed_choices.h"

#include <algorithm>
#include <cmath>

#include "base/integer_math.h"

namespace mcpp {
namespace {

/// Returns the probability that none of `drawn` of `all` elements, drawn without replacement, is among `marked` ones.
double probability_of_none(i64 drawn, i64 all, i64 marked) {
  double probability = 1;
  for (i64 i = 0; i < drawn; ++i) probability *= std::max(0.0, real(all - marked - i)) / real(all - i);
  return probability;
}

/// Returns the probability that exactly `hits` of `drawn` of `all` elements are among `marked` ones.
double hypergeometric(i64 hits, i64 drawn, i64 all, i64 marked) {
  const auto log_choose = [](i64 n, i64 k) {
    return std::lgamma(real(n + 1)) - std::lgamma(real(k + 1)) - std::lgamma(real(n - k + 1));
  };
  if (hits > marked || drawn - hits > all - marked) return 0;
  return std::exp(log_choose(marked, hits) + log_choose(all - marked, drawn - hits) - log_choose(all, drawn));
}

}  // namespace

std::vector<i32> assumed_counts(const ChoiceSizes& sizes, const ExpertParallel& parallel) {
  const AssumedChoices& assumed = parallel.assumed_choices;
  const auto& [tokens, topk, experts] = sizes;
  const ExpertRange own = parallel.local_experts(experts);
  const i64 local = own.count, first = own.first, ranks = parallel.exchange_ranks();
  const auto share = [](i64 all, i64 parts, i64 i) { return all * (i + 1) / parts - all * i / parts; };
  const i64 chosen = tokens * topk, max_here = tokens * std::min(topk, local);
  const bool is_even = assumed.load == ExpertLoad::Even;
  const double even = real(chosen * local) / real(experts);
  const i64 local_rows = is_even ? std::min<i64>(std::llround(assumed.imbalance * even), max_here) : max_here;
  const auto count = [&, all = experts](i64 e) {
    if (is_even && assumed.imbalance == 1) return share(chosen, all, e);
    if (e >= first && e < first + local) return share(local_rows, local, e - first);
    return share(chosen - local_rows, all - local, e < first ? e : e - local);
  };
  std::vector<i32> counts;
  for (i64 rank = 0; rank < ranks; ++rank) {
    const i64 limit = assumed.max_rows > 0 ? share(assumed.max_rows, ranks, rank) : tokens;
    for (i64 e = 0; e < experts; ++e) counts.push_back(static_cast<i32>(std::min(count(e), limit)));
  }
  return counts;
}

std::vector<i64> assumed_rows(const ChoiceSizes& sizes, const ExpertParallel& parallel) {
  const ExpertRange local = parallel.local_experts(sizes.num_experts);
  const std::vector<i32> counts = assumed_counts(sizes, parallel);
  std::vector<i64> rows(static_cast<std::size_t>(local.count), 0);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const i64 expert = static_cast<i64>(i) % sizes.num_experts - local.first;
    if (expert >= 0 && expert < local.count) rows[static_cast<std::size_t>(expert)] += counts[i];
  }
  return rows;
}

double probability_of_choice(i64 topk, i64 num_experts, i64 count, i64 num_groups, i64 group_topk) {
  const i64 group = num_groups > 0 ? num_experts / num_groups : 0;
  if (num_groups <= 0 || (count % group != 0 && group % count != 0))
    return 1 - probability_of_none(topk, num_experts, count);
  if (count < group)
    return real(group_topk) / real(num_groups) * (1 - probability_of_none(topk, group * group_topk, count));
  double none = 0;
  for (i64 hits = 0; hits <= group_topk; ++hits)
    none += hypergeometric(hits, group_topk, num_groups, count / group) *
            probability_of_none(topk, group * group_topk, group * hits);
  return 1 - none;
}

i64 assumed_tokens(const ChoiceSizes& sizes, const ExpertParallel& parallel, i64 count, bool has_local_experts) {
  const AssumedChoices& assumed = parallel.assumed_choices;
  const i64 local = sizes.num_experts / parallel.ep;
  const auto probability = [&](i64 experts) {
    return probability_of_choice(sizes.topk, sizes.num_experts, experts, assumed.num_groups, assumed.group_topk);
  };
  // Choices of local experts per token, if they are balanced and as assumed. The other experts share what is left.
  const double topk = real(sizes.topk), mean = topk * real(local) / real(sizes.num_experts),
               most = real(std::min(sizes.topk, local));
  const bool is_even = assumed.load == ExpertLoad::Even;
  const double chosen = is_even ? std::min(assumed.imbalance * mean, most) : most;
  double fraction = probability(count);
  if (has_local_experts)
    fraction = is_even ? std::max(fraction, assumed.imbalance * probability(local)) : 1;
  else
    fraction *= mean < topk ? (topk - chosen) / (topk - mean) : 0;
  const i64 limit = assumed.max_rows > 0 ? ceil_div(assumed.max_rows, parallel.exchange_ranks()) * count : sizes.tokens;
  return std::min<i64>({std::llround(fraction * real(sizes.tokens)), limit, sizes.tokens});
}

}  // namespace mcpp
