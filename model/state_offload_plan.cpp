#include "model/state_offload_plan.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/io/scratch_file.h"
#include "nn/offload/file_states.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Segments as split by optimizer/optimizer.cpp and placed by nn/offload/state_store.cpp.
class Segments {
 public:
  Segments(const ActivationSetup& setup, const RankMemorySpec& share)
      : element_(static_cast<double>(size_of(accumulate_dtype(setup.dtype)))),
        max_segment_(share.segment_elements),
        target_fraction_(share.offloaded_state_fraction) {}

  /// Adds elements that one rule updates, with `numbers` state values per element.
  void add(i64 elements, double numbers) {
    for (; elements > 0; elements -= max_segment_) add_one(std::min(elements, max_segment_), numbers);
  }
  double offloaded() const { return all_ > 0 ? offloaded_bytes_ / all_ : 0; }
  /// Bytes of each offloaded segment.
  const std::vector<i64>& offloaded_segments() const { return segments_; }

 private:
  void add_one(i64 elements, double numbers) {
    const double bytes = static_cast<double>(elements) * numbers * element_;
    all_ += bytes;
    if (offloaded_bytes_ + bytes / 2 > target_fraction_ * all_) return;
    offloaded_bytes_ += bytes;
    const double vectors = std::ceil(numbers);
    segments_.push_back(static_cast<i64>(vectors) * aligned_bytes(std::llround(std::ceil(bytes / vectors))));
  }

  double element_;
  i64 max_segment_;
  double target_fraction_, all_ = 0, offloaded_bytes_ = 0;
  std::vector<i64> segments_;
};

}  // namespace

StateOffloadPlan plan_state_offload(const ActivationSetup& setup, const StatesPerWeight& states,
                                    const RankMemorySpec& share, const RankParameters& parameters) {
  if (share.offloaded_state_fraction == 0) return {};
  Segments segments(setup, share);
  const double master = states.master(setup.dtype);
  const bool is_one_rule = states.matrix_states == states.other_states;
  const auto add = [&](const std::vector<ChunkParameters>& chunks, i64 shards) {
    const i64 cut = share.zero_stage >= 1 ? shards : 1;
    for (const ChunkParameters& chunk : chunks) {
      for (std::size_t b = 0; b < chunk.buckets.size(); ++b) {
        const i64 matrices = is_one_rule ? 0 : chunk.matrices_of_buckets[b] / cut;
        segments.add(matrices, states.matrix_states + master);
        segments.add(chunk.buckets[b] / cut - matrices, states.other_states + master);
      }
    }
  };
  add(parameters.dense, share.shards);
  add(parameters.experts, share.expert_shards);
  return {.offloaded = segments.offloaded(),
          .buffers = share.is_offloaded_to_disk
                         ? static_cast<double>(FileStates::memory_for(segments.offloaded_segments()))
                         : 0};
}

}  // namespace mcpp
