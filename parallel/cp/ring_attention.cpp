#include "parallel/cp/ring_attention.h"

#include "parallel/cp/key_values.h"
#include "parallel/cp/sequence_cut.h"
#include "tensor/wide.h"

namespace mcpp {
namespace {

QkvHeads with_keys(const Heads& queries, const KeyValues& key_values) {
  return {queries, key_values.keys(), key_values.values()};
}

/// Room for the attention of `q`, in the wide type.
AttentionResult wide_result(const Heads& q) {
  const DType type = wide(q.base.dtype());
  Device& device = q.base.device();
  return {.out = Tensor::empty({q.seq, q.batch, q.heads * q.head_dim}, type, device),
          .lse = Tensor::empty({q.batch, q.heads, q.seq}, type, device)};
}

/// One tensor on its way round: while `at_hand` is worked with, the next one arrives.
class Traveller {
 public:
  Traveller(Communicator& ring, int previous, int next) : ring_(ring), previous_(previous), next_(next) {}

  /// Sends `at_hand` on; what comes in its place is like it.
  void pass_on(const Tensor& at_hand) {
    sent_ = ring_.send(at_hand, next_);
    coming_ = Tensor::like(at_hand);
    arrival_ = ring_.recv(coming_, previous_);
  }
  Tensor arrived() {
    sent_.wait();
    arrival_.wait();
    return std::exchange(coming_, {});
  }

 private:
  Communicator& ring_;
  int previous_, next_;
  Tensor coming_;
  Work sent_, arrival_;
};

}  // namespace

/// The positions of the keys that are here after so many hops.
PositionRanges RingAttention::keys_after(int hops, i64 rows) const {
  const SequenceCut cut{.heads = 1, .rings = ring_.size()};
  return cut.of((ring_.rank() + ring_.size() - hops) % ring_.size(), rows);
}

AttentionResult RingAttention::forward(const QkvHeads& x, const AttentionOptions& options) {
  const Heads& q = x.q;
  AttentionOptions how = options;
  AttentionResult total = wide_result(q), part;
  KeyValues at_hand = KeyValues::of(x);
  Traveller keys_values(ring_, previous(), next());
  for (int hop = 0; hop < ring_.size(); ++hop) {
    const bool is_last = hop + 1 == ring_.size();
    if (!is_last) keys_values.pass_on(at_hand.both);
    how.keys = keys_after(hop, q.seq);
    if (hop == 0) {
      ops::attention(with_keys(q, at_hand), how, total);
    } else {
      if (hop == 1) part = wide_result(q);
      ops::attention(with_keys(q, at_hand), how, part);
      ops::merge_attention(part, total);
    }
    if (!is_last) at_hand.both = keys_values.arrived();
  }
  if (q.base.dtype() == total.out.dtype()) return total;
  AttentionResult result{Tensor::like(q.base, total.out.shape()), total.lse};
  ops::copy(total.out, result.out);
  return result;
}

void RingAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                             const AttentionOptions& options, QkvHeads& dx) {
  const Heads& q = x.q;
  const DType type = wide(q.base.dtype());
  const auto share_of_queries = [&] {
    return dense_heads(Tensor::empty({q.seq, q.batch, q.heads, q.head_dim}, type, q.base.device()), q.heads);
  };
  AttentionOptions how = options;
  KeyValues at_hand = KeyValues::of(x);
  const auto share_of_keys = [&](const Heads& d_queries) {
    KeyValues share = KeyValues::like(x, x.k.seq, type);
    QkvHeads d_part{d_queries, share.keys(), share.values()};
    ops::attention_backward(dout, with_keys(q, at_hand), y, how, d_part);
    return share;
  };
  Traveller keys_values(ring_, previous(), next()), gradients(ring_, previous(), next());
  Heads dq = share_of_queries(), dq_share;
  for (int hop = 0; hop < ring_.size(); ++hop) {
    const bool is_last = hop + 1 == ring_.size();
    if (!is_last) keys_values.pass_on(at_hand.both);
    how.keys = keys_after(hop, q.seq);
    if (hop == 1) dq_share = share_of_queries();
    KeyValues share = share_of_keys(hop == 0 ? dq : dq_share);
    if (hop > 0) {
      ops::add_to(dq_share.base, dq.base);
      Tensor sum = gradients.arrived();  // of those who had these keys before, their owner first
      ops::add_to(share.both, sum);
      share.both = sum;
    }
    gradients.pass_on(share.both);
    if (!is_last) at_hand.both = keys_values.arrived();
  }
  ops::copy_heads(dq, dx.q);
  KeyValues{gradients.arrived()}.copy_to(dx);
}

}  // namespace mcpp
