#include "megatron_cpp/step/step_replay.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/machine.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "parallel/reduce_scalar.h"
#include "tensor/checksum.h"

namespace mcpp {
namespace {

constexpr const char* kGradient = "the gradient";

/// Returns the index of the first contribution that differs; the number of contributions if only the gradients differ,
/// and -1 if nothing does.
i64 first_difference(const Execution& a, const Execution& b) {
  const auto [left, right] = std::ranges::mismatch(a.contributions, b.contributions);
  if (left != a.contributions.end() || right != b.contributions.end()) return left - a.contributions.begin();
  return a.gradient == b.gradient ? -1 : std::ssize(a.contributions);
}

/// Returns the operation at an index of first_difference(); "" for -1.
std::string operation_at(const Execution& execution, i64 index) {
  if (index < 0) return "";
  const auto i = static_cast<std::size_t>(index);
  return i < execution.contributions.size() ? execution.contributions[i].operation : kGradient;
}

using OperationHash = std::size_t;

OperationHash hash_of(const Contribution& contribution) {
  return std::hash<std::string>()(contribution.operation);
}

/// Returns the operations to which the contributions differ, from the first on, as the bytes of their hashes. Those of
/// the first kMaxDifferences suffice, because a wrong result spreads to neighbors within a few operations.
std::string differing_operations(const Execution& a, const Execution& b, i64 first) {
  constexpr std::size_t kMaxDifferences = 4096;
  std::vector<OperationHash> hashes;
  const std::size_t end = std::min(a.contributions.size(), b.contributions.size());
  for (auto i = static_cast<std::size_t>(first); first >= 0 && i < end && hashes.size() < kMaxDifferences; ++i) {
    const Contribution& contribution = a.contributions[i];
    if (contribution.checksum && contribution != b.contributions[i]) hashes.push_back(hash_of(contribution));
  }
  return {reinterpret_cast<const char*>(hashes.data()), hashes.size() * sizeof(OperationHash)};
}

/// Returns true if the rank took part in one of the operations, bytes of hashes, before its contribution `index`.
bool took_part_before(const Execution& execution, i64 index, const std::string& operations) {
  std::set<OperationHash> own;
  for (i64 i = 0; i < index; ++i) own.insert(hash_of(execution.contributions[static_cast<std::size_t>(i)]));
  for (std::size_t at = 0; at < operations.size(); at += sizeof(OperationHash)) {
    OperationHash hash = 0;
    std::memcpy(&hash, operations.data() + at, sizeof(hash));
    if (own.contains(hash)) return true;
  }
  return false;
}

}  // namespace

std::string describe(const std::vector<FaultyRank>& ranks) {
  std::vector<std::string> parts;
  for (const FaultyRank& rank : ranks)
    parts.push_back(str("rank ", rank.rank, " on ", rank.host, " (first in ", rank.operation, ")"));
  return join(parts, ", ");
}

StepReplay::StepReplay(TrainingState& state, ParallelState& parallel) : state_(state), parallel_(parallel) {
  for (const auto& [name, meter] : parallel_.meters) meter->contributions = &log_;
}

StepReplay::~StepReplay() {
  for (const auto& [name, meter] : parallel_.meters) meter->contributions = nullptr;
}

Execution StepReplay::execute(const Pass& pass) {
  state_.publish_weights();  // gathers that follow an update only must not distinguish executions
  log_.start();
  pass();
  Execution result{.contributions = log_.stop(), .gradient = checksum_of(state_.loss_totals()), .measurement = {}};
  for (const TrainingState::Chunk& chunk : state_.chunks())
    chunk.memory->visit_grads([&](const Param&, i64, const Tensor& values) { result.gradient += checksum_of(values); });
  result.measurement = measurement_ = state_.measure();
  return result;
}

bool StepReplay::are_identical(const Execution& a, const Execution& b) const {
  CpuDevice host;
  return reduce_scalar(first_difference(a, b) >= 0 ? 1 : 0, ReduceOp::Max, parallel_.world, host) == 0;
}

std::vector<FaultyRank> StepReplay::find_faulty_ranks(const Execution& a, const Execution& b) const {
  const i64 first = first_difference(a, b);
  const std::vector<std::string> firsts = all_gather_strings(operation_at(a, first), parallel_.world),
                                 differing = all_gather_strings(differing_operations(a, b, first), parallel_.world);
  bool is_faulty = first >= 0;
  for (std::size_t rank = 0; rank < differing.size() && is_faulty; ++rank)
    if (static_cast<int>(rank) != parallel_.world.rank()) is_faulty = !took_part_before(a, first, differing[rank]);
  const std::vector<std::string> hosts = all_gather_strings(host_name(), parallel_.world),
                                 flags = all_gather_strings(is_faulty ? "faulty" : "", parallel_.world);
  const bool is_known = std::ranges::count(flags, "faulty") > 0;
  std::vector<FaultyRank> ranks;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    if (is_known ? !flags[rank].empty() : !firsts[rank].empty())
      ranks.push_back({.rank = static_cast<int>(rank), .host = hosts[rank], .operation = firsts[rank]});
  return ranks;
}

ReplayVerdict StepReplay::compare(const Pass& pass) {
  using Kind = ReplayVerdict::Kind;
  const Execution first = execute(pass), second = execute(pass);
  if (first.measurement.is_aborted || second.measurement.is_aborted) return {.kind = Kind::Aborted};
  if (are_identical(first, second)) return {.kind = Kind::Reproducible};
  const std::vector<FaultyRank> ranks = find_faulty_ranks(first, second);
  const Execution third = execute(pass);
  if (third.measurement.is_aborted) return {.kind = Kind::Aborted};
  const bool agrees_with_first = are_identical(first, third), agrees_with_second = are_identical(second, third);
  return {.kind = agrees_with_first || agrees_with_second ? Kind::Transient : Kind::Persistent, .ranks = ranks};
}

}  // namespace mcpp
