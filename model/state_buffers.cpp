#include "model/state_buffers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/io/scratch_file.h"
#include "nn/offload/file_states.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

/// Segments as split by optimizer/optimizer.cpp and placed by nn/offload/tiered_states.cpp.
class Segments {
 public:
  Segments(const ActivationSetup& setup, const RankShare& share)
      : element_(static_cast<double>(size_of(wide(setup.dtype)))),
        longest_(share.segment_elements),
        far_share_(share.states_elsewhere) {}

  /// Adds elements that one rule updates, with `numbers` state values per element.
  void add(i64 elements, double numbers) {
    for (; elements > 0; elements -= longest_) add_one(std::min(elements, longest_), numbers);
  }
  double elsewhere() const { return all_ > 0 ? far_ / all_ : 0; }
  /// Bytes of each offloaded segment.
  const std::vector<i64>& far() const { return segments_; }

 private:
  void add_one(i64 elements, double numbers) {
    const double bytes = static_cast<double>(elements) * numbers * element_;
    all_ += bytes;
    if (far_ + bytes / 2 > far_share_ * all_) return;
    far_ += bytes;
    const double vectors = std::ceil(numbers);
    segments_.push_back(static_cast<i64>(vectors) * aligned_bytes(std::llround(std::ceil(bytes / vectors))));
  }

  double element_;
  i64 longest_;
  double far_share_, all_ = 0, far_ = 0;
  std::vector<i64> segments_;
};

}  // namespace

PlacedStates place_states(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters) {
  if (share.states_elsewhere == 0) return {};
  Segments segments(setup, share);
  const double master = states.master(setup.dtype);
  const bool is_one_rule = states.of_matrices == states.of_others;
  const auto add = [&](const std::vector<ChunkParameters>& chunks, i64 shards) {
    const i64 cut = share.zero_stage >= 1 ? shards : 1;
    for (const ChunkParameters& chunk : chunks) {
      for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
        const i64 matrices = is_one_rule ? 0 : chunk.matrices_of_buckets[b] / cut;
        segments.add(matrices, states.of_matrices + master);
        segments.add(chunk.buckets[b] / cut - matrices, states.of_others + master);
      }
    }
  };
  add(parameters.dense, share.shards);
  add(parameters.experts, share.expert_shards);
  return {.elsewhere = segments.elsewhere(),
          .buffers = share.elsewhere_is_disk ? static_cast<double>(FileStates::memory_for(segments.far())) : 0};
}

}  // namespace mcpp
