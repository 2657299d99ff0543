#include "model/state_buffers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "nn/offload/file_states.h"
#include "nn/offload/host_memory.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

/// Elements that each buffer comes to have room for. Segments take the buffers in turn, step after step, and a buffer
/// stays as long as the longest that was in it.
class Buffers {
 public:
  /// `far_share`: of the states, those on the disk, chosen segment by segment as nn/offload/tiered_states.cpp does.
  explicit Buffers(double far_share) : far_share_(far_share) {}

  void add(i64 elements) {
    const auto size = static_cast<double>(elements);
    all_ += size;
    if (far_ + size / 2 > far_share_ * all_) return;
    far_ += size;
    i64& longest = longest_[static_cast<std::size_t>(segments_++ % FileStates::kSlots)];
    longest = std::max(longest, elements);
  }

  std::array<i64, FileStates::kSlots> elements() const {
    std::array<i64, FileStates::kSlots> buffers = longest_;
    if (segments_ < FileStates::kSlots) return buffers;
    // Where their number has no factor in common with that of the buffers, each buffer sees them all.
    const auto apart = static_cast<std::size_t>(std::gcd(segments_, FileStates::kSlots));
    for (std::size_t b = 0; b < buffers.size(); ++b)
      for (std::size_t other = b % apart; other < buffers.size(); other += apart)
        buffers[b] = std::max(buffers[b], longest_[other]);
    return buffers;
  }

 private:
  double far_share_, all_ = 0, far_ = 0;
  i64 segments_ = 0;
  std::array<i64, FileStates::kSlots> longest_{};  // of those whose number has this remainder
};

}  // namespace

double state_buffer_bytes(const ActivationSetup& setup, const StatesPerWeight& states, const RankShare& share,
                          const RankParameters& parameters) {
  if (!share.elsewhere_is_disk || share.states_elsewhere == 0) return 0;
  Buffers buffers(share.states_elsewhere);
  const auto add = [&](const std::vector<ChunkParameters>& chunks, i64 shards) {
    for (const ChunkParameters& chunk : chunks) {
      for (const i64 bucket : chunk.buckets)
        for (i64 left = share.zero_stage >= 1 ? bucket / shards : bucket; left > 0; left -= share.segment_elements)
          buffers.add(std::min(left, share.segment_elements));
    }
  };
  add(parameters.dense, share.shards);
  add(parameters.experts, share.expert_shards);
  const double numbers = std::max(states.of_matrices, states.of_others) + states.master(setup.dtype);
  const double vectors = std::ceil(numbers),
               width = numbers / vectors * static_cast<double>(size_of(wide(setup.dtype)));
  double sum = 0;
  for (const i64 elements : buffers.elements()) {
    if (elements == 0) continue;
    const i64 bytes = std::llround(std::ceil(static_cast<double>(elements) * width));
    sum += vectors * static_cast<double>(aligned_tensor_bytes(aligned_bytes(bytes)));
  }
  return sum;
}

}  // namespace mcpp
