#include "parallel/cp/ring_attention.h"

#include "parallel/cp/gathered_attention.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

QkvHeads replace_keys(const Heads& queries, const KeyValues& key_values) {
  return {queries, key_values.keys(), key_values.values()};
}

/// Allocates the attention result of x in the accumulation type.
AttentionResult make_accumulation_result(const QkvHeads& x) {
  const Heads& q = x.q;
  const DType type = accumulate_dtype(q.base.dtype());
  Device& device = q.base.device();
  return {.out = Tensor::empty({q.seq, q.batch, q.heads * x.v.head_dim}, type, device),
          .lse = Tensor::empty({q.batch, q.heads, q.seq}, type, device)};
}

/// Communication plan of one rank: which keys are received, used and forwarded at each hop.
class RingRoute {
 public:
  RingRoute(const Communicator& ring, const CoreAttentionOptions& options)
      : rank_(ring.rank()), size_(ring.size()), partition_(*options.partition), window_(options.window) {
    for (i64 owner = 0; owner < size_; ++owner) reach_.push_back(partition_.reach(owner, window_));
  }

  i64 hops() const { return size_; }
  /// Returns the rank that owns the keys of this hop.
  int owner(i64 hop) const { return rank_after(size_ - hop); }
  int next() const { return rank_after(1); }
  int previous() const { return rank_after(size_ - 1); }
  /// Returns the last rank that sees this rank's keys; it sends their gradient back.
  int last_consumer() const { return rank_after(own_reach()); }
  i64 own_reach() const { return reach(0); }

  bool has_arrival(i64 hop) const { return hop < size_ && reach(hop) >= hop; }
  bool should_forward(i64 hop) const { return reach(hop) > hop; }
  bool is_visible(i64 hop) const { return hop == 0 || partition_.sees(rank_, owner(hop), window_); }
  /// Returns true if a rank between the owner and this one saw the keys.
  bool was_seen_before(i64 hop) const {
    for (i64 back = 1; back < hop; ++back)
      if (partition_.sees(rank_after(size_ - back), owner(hop), window_)) return true;
    return false;
  }
  PositionRanges positions(i64 hop) const { return partition_.member_positions(owner(hop)); }

 private:
  int rank_after(i64 hops) const { return static_cast<int>((rank_ + hops) % size_); }
  i64 reach(i64 hop) const { return reach_[static_cast<std::size_t>(owner(hop))]; }

  i64 rank_, size_;
  const SamplePartition& partition_;
  i64 window_;
  std::vector<i64> reach_;  // by rank: number of hops that its keys travel
};

/// Double-buffered ring messages of one kind, all shaped like one tensor: the next one arrives while one is being used.
/// A sent tensor is kept until the next send or the end, so that no rank waits or copies because its successor is late.
class RingChannel {
 public:
  RingChannel(Communicator& ring, const Tensor& like)
      : ring_(ring), shape_(like.shape()), dtype_(like.dtype()), device_(like.device()) {}

  /// Waits for the last send and releases its tensor.
  void release_sent() {
    sent_.wait();
    sending_ = {};
  }
  void send(const Tensor& t, int to) {
    release_sent();
    sending_ = t;
    sent_ = ring_.send(sending_, to);
  }
  void receive(int from) {
    incoming_ = Tensor::empty(shape_, dtype_, device_);
    arrival_ = ring_.recv(incoming_, from);
  }
  /// Returns the received tensor; undefined if none was expected.
  Tensor take_received() {
    arrival_.wait();
    return std::exchange(incoming_, {});
  }

 private:
  Communicator& ring_;
  Shape shape_;
  DType dtype_;
  Device& device_;
  Tensor sending_, incoming_;
  Work sent_, arrival_;  // declared after the tensors: their destructors wait
};

/// Keys and values of the current hop: this rank's own, then the received ones.
class RingKeyValues {
 public:
  RingKeyValues(Communicator& ring, const RingRoute& route, const QkvHeads& x)
      : route_(route), current_(KeyValues::of(x)), channel_(ring, current_.tensor) {}

  const KeyValues& operator*() const { return current_; }
  /// Forwards the current keys if they are still needed and starts receiving the next ones. Uses two tensors; the
  /// memory estimate counts no third.
  void begin(i64 hop) {
    if (route_.should_forward(hop))
      channel_.send(current_.tensor, route_.next());
    else
      channel_.release_sent();
    if (route_.has_arrival(hop + 1)) channel_.receive(route_.previous());
  }
  void end() { current_.tensor = channel_.take_received(); }

 private:
  const RingRoute& route_;
  KeyValues current_;
  RingChannel channel_;
};

}  // namespace

AttentionResult RingAttention::forward(const QkvHeads& x, const CoreAttentionOptions& options) {
  const Heads& q = x.q;
  const RingRoute route(ring_, options);
  CoreAttentionOptions block_options = options;
  AttentionResult total = make_accumulation_result(x), part;
  RingKeyValues keys(ring_, route, x);
  for (i64 hop = 0; hop < route.hops(); ++hop) {
    keys.begin(hop);
    block_options.keys = route.positions(hop);
    if (hop == 0) {
      attend(replace_keys(q, *keys), block_options, total);
    } else if (route.is_visible(hop)) {
      if (!part.out.defined()) part = make_accumulation_result(x);
      attend(replace_keys(q, *keys), block_options, part);
      ops::merge_attention(part, total);
    }
    keys.end();
  }
  if (q.base.dtype() == total.out.dtype()) return total;
  AttentionResult result{Tensor::like(q.base, total.out.shape()), total.lse};
  ops::copy(total.out, result.out);
  return result;
}

void RingAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                             const CoreAttentionOptions& options, QkvHeads& dx) {
  const Heads& q = x.q;
  const DType type = accumulate_dtype(q.base.dtype());
  const RingRoute route(ring_, options);
  AttentionOptions block_options = options;
  RingKeyValues keys(ring_, route, x);
  const auto make_query_gradient = [&] {
    return dense_heads(Tensor::empty({q.seq, q.batch, q.heads, q.head_dim}, type, q.base.device()), q.heads);
  };
  Heads dq = make_query_gradient(), dq_part;
  KeyValues local = KeyValues::like(x, x.k.seq, type);  // this rank's contribution to the gradient of its own keys
  RingChannel sums(ring_, local.tensor);                // contributions of other ranks, accumulated along the ring
  const auto compute = [&](const Heads& d_queries, const KeyValues& d_keys) {
    QkvHeads d_part{d_queries, d_keys.keys(), d_keys.values()};
    ops::attention_backward(dout, replace_keys(q, *keys), y, block_options, d_part);
  };
  for (i64 hop = 0; hop < route.hops(); ++hop) {
    keys.begin(hop);
    block_options.keys = route.positions(hop);
    Tensor sum;
    if (hop == 0) {
      compute(dq, local);
    } else if (route.is_visible(hop)) {
      if (!dq_part.base.defined()) dq_part = make_query_gradient();
      KeyValues part = KeyValues::like(x, x.k.seq, type);
      compute(dq_part, part);
      ops::add_to(dq_part.base, dq.base);
      sum = sums.take_received();
      if (sum.defined())
        ops::add_to(part.tensor, sum);
      else
        sum = part.tensor;
    } else {
      sum = sums.take_received();
    }
    if (sum.defined()) sums.send(sum, route.should_forward(hop) ? route.next() : route.owner(hop));
    if (route.has_arrival(hop + 1) && route.was_seen_before(hop + 1)) sums.receive(route.previous());
    keys.end();
  }
  ops::copy_heads(dq, dx.q);
  if (route.own_reach() > 0) {
    sums.receive(route.last_consumer());
    ops::add_to(sums.take_received(), local.tensor);
  }
  local.copy_to(dx);
}

}  // namespace mcpp
