#include "megatron_cpp/replica_check.h"

#include <algorithm>
#include <map>

#include "base/file.h"
#include "checkpoint/exchange.h"
#include "checkpoint/process.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// "<name> <checksum>" of each parameter that this rank uses, a line each, after a line that says who it is.
std::string fingerprints(const TrainingState& state, int rank) {
  std::string text = str("rank ", rank, " on ", host_name(), "\n");
  std::vector<std::byte> bytes;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    const std::vector<ParamMeta>& metas = chunk.memory->plan().params;
    for (std::size_t i = 0; i < metas.size(); ++i) {
      chunk.memory->acquire(metas[i].unit, Use::Forward);
      const Tensor& value = chunk.memory->params()[i]->value;
      bytes.resize(static_cast<std::size_t>(value.bytes()));
      read_bytes(value, bytes.data());
      text += str(metas[i].name, " ", checksum_hex(bytes), "\n");
      chunk.memory->release(metas[i].unit, Use::Forward, true);
    }
  }
  return text;
}

/// The first name that has another checksum in `b` than in `a`.
std::string first_difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> left = split(a, '\n'), right = split(b, '\n');
  for (std::size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (left[i] != right[i]) return left[i].substr(0, left[i].find(' '));
  }
  return "the list of parameters";
}

/// Empty when all of `texts`, each a line of who and then the fingerprints, are the same below that line.
std::string defect_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<std::string>> holders;  // who holds what
  for (const std::string& text : texts) {
    const std::size_t end = text.find('\n');
    holders[text.substr(end + 1)].push_back(text.substr(0, end));
  }
  if (holders.size() == 1) return "";
  const auto most = std::ranges::max_element(holders, {}, [](const auto& h) { return h.second.size(); });
  const bool is_clear =
      std::ranges::count(holders, most->second.size(), [](const auto& h) { return h.second.size(); }) == 1;
  std::vector<std::string> odd;
  std::string parameter;
  for (const auto& holder : holders) {
    if (holder.first == most->first && is_clear) continue;
    odd.insert(odd.end(), holder.second.begin(), holder.second.end());
    if (holder.first != most->first) parameter = first_difference(most->first, holder.first);
  }
  return str(join(odd, ", "), is_clear ? " holds other weights than its replicas" : " hold different weights",
             ", first in ", parameter);
}

}  // namespace

void check_weights_across_replicas(const TrainingState& state, ParallelState& parallel) {
  run_together(parallel.world, [&] {
    const std::string mine = fingerprints(state, parallel.world.rank());
    const std::string defect = defect_of(all_gather_text(mine, *parallel.dp));
    if (!defect.empty())
      fail(ExitCode::PeerLost, defect,
           ": memory or arithmetic of that machine cannot be trusted. Leave it out and start "
           "again; the run goes on from its last checkpoint");
    return std::string();
  });
}

}  // namespace mcpp
