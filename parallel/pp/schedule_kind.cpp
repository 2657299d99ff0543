#include "parallel/pp/schedule_kind.h"

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr bool is_in_order() {
  for (std::size_t i = 0; i < kSchedules.size(); ++i)
    if (static_cast<std::size_t>(kSchedules[i].kind) != i) return false;
  return true;
}
static_assert(is_in_order(), "row_of() indexes the table by kind");

/// Returns true if the formulas for two chunks per rank in a V apply.
bool fills_v_with_equal_costs(const PipelineSize& size, const ScheduleCosts& c) {
  return size.microbatches >= 2 * size.ranks && c.forward == c.backward_input && c.forward == c.backward_weight;
}

}  // namespace

std::optional<double> bubble_of_1f1b(const PipelineSize& size, const ScheduleCosts&) {
  const double p = size.ranks, m = size.microbatches;
  return (p - 1) / (size.chunks * m + p - 1);
}

std::optional<double> bubble_of_zb_h1(const PipelineSize& size, const ScheduleCosts& c) {
  const double work = c.forward + c.backward_input + c.backward_weight;
  const double idle = (size.ranks - 1) * (c.forward + c.backward_input - c.backward_weight);
  if (size.microbatches < size.ranks || idle < 0 || work == 0) return std::nullopt;
  return idle / (size.microbatches * work + idle);
}

std::optional<double> bubble_of_zb_v(const PipelineSize& size, const ScheduleCosts& c) {
  if (!fills_v_with_equal_costs(size, c)) return std::nullopt;
  return 0;
}

std::optional<double> bubble_of_dualpipe_v(const PipelineSize& size, const ScheduleCosts& c) {
  if (!fills_v_with_equal_costs(size, c)) return std::nullopt;
  const double p = size.ranks, m = size.microbatches;
  return (p - 1) / (6 * m + p - 1);
}

Schedule make_schedule(ScheduleKind kind, int ranks, int microbatches, int chunks) {
  const std::vector<std::string> conflicts = schedule_conflicts(kind, ranks, chunks, microbatches);
  check_input(conflicts.empty(), join(conflicts, "\n"));
  return row_of(kind).build({.ranks = ranks, .microbatches = microbatches, .chunks = chunks});
}

std::vector<std::string> schedule_conflicts(ScheduleKind kind, int ranks, int chunks, int microbatches) {
  std::vector<std::string> problems;
  const auto at_least_one = [&](const char* name, int value) {
    if (value < 1) problems.push_back(str(name, " = ", value, " must be at least 1"));
  };
  at_least_one("pipeline_model_parallel_size", ranks);
  at_least_one("num_virtual_stages_per_pipeline_rank", chunks);
  at_least_one("num_microbatches", microbatches);
  if (!problems.empty()) return problems;
  // Every rank stores the entire schedule. This limit corresponds to some hundred MiB, more than any run needs.
  constexpr i64 kMaxActions = i64{1} << 23;
  if (i64{ranks} * chunks > kMaxActions / microbatches)
    problems.push_back(str(i64{ranks} * chunks, " pipeline stages x ", microbatches, " microbatches are more than ",
                           kMaxActions, "; raise micro_batch_size, or use fewer stages"));

  const ScheduleRow& row = row_of(kind);
  const std::string name = str("pipeline_schedule = ", row.name), fallback(enum_name(ScheduleKind::OneFOneB));
  if (!row.allows_more_chunks && chunks != row.min_chunks)
    problems.push_back(str(name, " needs num_virtual_stages_per_pipeline_rank = ", row.min_chunks, ", not ", chunks,
                           "; for ", chunks, ", use ",
                           chunks == 1 ? fallback : std::string(enum_name(ScheduleKind::Interleaved))));
  if (ranks < row.min_ranks)
    problems.push_back(str(name, " needs pipeline_model_parallel_size of at least ", row.min_ranks, ", not ", ranks,
                           "; for ", ranks, ", use ", fallback));
  if (row.allows_more_chunks && chunks < row.min_chunks)
    problems.push_back(str(name, " needs num_virtual_stages_per_pipeline_rank of at least ", row.min_chunks, ", not ",
                           chunks, "; for ", chunks, ", use ", fallback));
  if (row.needs_multiple_of_ranks && microbatches % ranks != 0)
    problems.push_back(str(name,
                           " needs num_microbatches, which is global_batch_size / (micro_batch_size x data-parallel",
                           " ranks), to be a multiple of pipeline_model_parallel_size = ", ranks, ", not ",
                           microbatches, "; nearest: ", join_alternatives(nearest_multiples(ranks, microbatches))));
  return problems;
}

std::string describe_min_chunks() {
  std::vector<std::string> needs;
  for (const ScheduleRow& row : kSchedules)
    if (row.min_chunks > 1)
      needs.push_back(str(row.allows_more_chunks ? "at least " : "", row.min_chunks, " for ", row.name));
  return join(needs, ", ");
}

namespace {

/// Returns text like "a, b or c" with the names of the kinds for which `is_listed(row)` returns true.
template <class Predicate>
std::string list_kinds(const Predicate& is_listed) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : kSchedules)
    if (is_listed(row)) names.emplace_back(row.name);
  const std::string last = names.back();
  names.pop_back();
  return str(join(names, ", "), " or ", last);
}

}  // namespace

std::string kinds_with_fused_backward() {
  return list_kinds([](const ScheduleRow& row) { return !row.splits_backward; });
}

std::string kinds_with_combined_passes() {
  return list_kinds([](const ScheduleRow& row) { return can_combine_passes(row.kind); });
}

}  // namespace mcpp
