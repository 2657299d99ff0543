#include "megatron_cpp/step/state_checks.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>

#include "base/machine.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

template <class F>
void for_each_weight(const TrainingState& state, F&& f) {
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_weights([&](const Param& param, i64, const Tensor& values) { f(param, values); });
  }
}

/// Squares of fp32 values are added in fp64, where they cannot overflow.
std::string find_on_this_rank(const TrainingState& state, Device& device) {
  Tensor sum = Tensor::zeros({1}, DType::F64, device, MemoryClass::Workspace);
  for_each_weight(state, [&](const Param&, const Tensor& values) { ops::add_sum_of_squares(values, sum); });
  std::string name;
  if (std::isfinite(read_values<double>(sum)[0])) return name;
  for_each_weight(state, [&](const Param& param, const Tensor& values) {
    if (name.empty() && !std::isfinite(ops::sum_of_squares(values))) name = param.name;
  });
  return name;
}

}  // namespace

std::string find_nonfinite_weight(const TrainingState& state, Communicator& world, Device& device) {
  const std::vector<std::string> names = run_on_all_ranks(world, [&] { return find_on_this_rank(state, device); });
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (!names[rank].empty()) return str("rank ", rank, ": ", names[rank]);
  }
  return "";
}

namespace {

/// Text of a header line that identifies the rank, followed by a line "<name> <fingerprint>" per parameter of a grid.
struct Fingerprints {
  std::string text;
  std::exception_ptr error;  ///< first error
};

/// Computes the fingerprints of all parameters. Continues after an error because gathering a parameter is collective.
Fingerprints fingerprints(const TrainingState& state, GridKind grid, int rank, const Fingerprint& fingerprint) {
  Fingerprints result{.text = str("rank ", rank, " on ", host_name(), "\n"), .error = nullptr};
  for (ParamAndGradBuffer* buffer : state.buffers()) {
    if (buffer->grid() != grid) continue;
    const std::vector<ParamMeta>& metas = buffer->plan().params;
    for (std::size_t i = 0; i < metas.size(); ++i) {
      buffer->acquire(metas[i].unit, Use::Forward);
      try {
        if (!result.error) result.text += str(metas[i].name, " ", fingerprint(buffer->params()[i]->value), "\n");
      } catch (...) {
        result.error = std::current_exception();
      }
      buffer->release(metas[i].unit, Use::Forward, true);
    }
  }
  return result;
}

/// Returns the first name whose checksum differs between `a` and `b`.
std::string first_difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = split(a, '\n'), right = split(b, '\n');
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (left[i] != right[i]) return left[i].substr(0, left[i].find(' '));
  }
  return "the list of parameters";
}

/// Returns "" if all of `texts`, apart from their header lines, are identical; otherwise a description.
std::string describe_mismatch(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<std::string>> ranks_by_content;  // ranks by content
  for (const std::string& text : texts) {
    const std::size_t end = text.find('\n');
    ranks_by_content[text.substr(end + 1)].push_back(text.substr(0, end));
  }
  if (ranks_by_content.size() == 1) return "";
  const auto majority = std::ranges::max_element(ranks_by_content, {}, [](const auto& h) { return h.second.size(); });
  const bool has_majority =
      std::ranges::count(ranks_by_content, majority->second.size(), [](const auto& h) { return h.second.size(); }) == 1;
  std::vector<std::string> suspects;
  std::string parameter;
  for (const auto& holder : ranks_by_content) {
    if (holder.first == majority->first && has_majority) continue;
    suspects.insert(suspects.end(), holder.second.begin(), holder.second.end());
    if (holder.first != majority->first) parameter = first_difference(majority->first, holder.first);
  }
  return str(join(suspects, ", "),
             has_majority ? " holds different weights than its replicas" : " hold different weights", ", first in ",
             parameter);
}

void check_grid(const TrainingState& state, ParallelState& parallel, GridKind grid, Communicator& replicas,
                const Fingerprint& fingerprint) {
  const Fingerprints local = fingerprints(state, grid, parallel.world.rank(), fingerprint);
  run_on_all_ranks(parallel.world, [&] {
    if (local.error) std::rethrow_exception(local.error);
  });
  const std::string defect = describe_mismatch(all_gather_strings(local.text, replicas));
  run_on_all_ranks(parallel.world, [&] {
    if (!defect.empty())
      fail(ExitCode::PeerLost, defect,
           ": memory or arithmetic of that host cannot be trusted. Exclude it and restart; the run resumes from its "
           "last checkpoint");
  });
}

}  // namespace

void check_weights_across_replicas(const TrainingState& state, ParallelState& parallel,
                                   const Fingerprint& fingerprint) {
  check_grid(state, parallel, GridKind::Dense, *parallel.dp_cp, fingerprint);
  if (parallel.expert_dp) check_grid(state, parallel, GridKind::Expert, *parallel.expert_dp, fingerprint);
}

}  // namespace mcpp
