// Attention over gathered keys and values: each rank temporarily holds all keys, but only its own queries. Keys are
// small with grouped queries. Every softmax sum is computed by one rank, regardless of document boundaries. Llama Team,
// "The Llama 3 Herd of Models", 2024, section 3.3.2.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/context_parallel.h"
#include "tensor/ops/ops.h"

namespace mcpp {

// Keys and values in one tensor, as they are sent between ranks.

/// Tensor [s, b, 2, groups, width] of keys and values, or of their gradients; heads narrower than the width are padded.
struct KeyValues {
  Tensor tensor;
  i64 key_dim = 0, value_dim = 0;

  /// Returns an uninitialized tensor shaped like the keys and values of x, with `seq` rows.
  static KeyValues like(const QkvHeads& x, i64 seq, DType dtype);
  /// Copies the keys and values of x.
  static KeyValues of(const QkvHeads& x);

  Heads keys() const { return half(0, key_dim); }
  Heads values() const { return half(1, value_dim); }
  /// Copies to the keys and values of `x`, converting the dtype.
  void copy_to(QkvHeads& x) const;

 private:
  Heads half(i64 index, i64 head_dim) const;
};

/// All-gather implementation of core attention. The ranks of `group` hold the sequence in chunks (SamplePartition).
/// Backward gathers keys and values again instead of saving them; their gradients are reduce-scattered in the
/// accumulation type.
///
/// Traffic per rank, for n ranks and k bytes of its keys and values (w in the accumulation type): forward (n - 1) k,
/// backward (n - 1) (k + w).
class GatheredAttention final : public CoreAttention {
 public:
  explicit GatheredAttention(Communicator& group) : group_(group) {}

  AttentionResult forward(const QkvHeads& x, const CoreAttentionOptions& options) override;
  void backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const CoreAttentionOptions& options,
                QkvHeads& dx) override;

 private:
  QkvHeads gather_keys(const QkvHeads& x, const SamplePartition& partition);

  Communicator& group_;
};

}  // namespace mcpp
