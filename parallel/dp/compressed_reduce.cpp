#include "parallel/dp/compressed_reduce.h"

#include <memory>

#include "tensor/ops/low_precision/pack.h"

namespace mcpp {
namespace {

/// Encoded all-to-all of equal pieces of a tensor, one piece per rank of a group, in flight.
class Exchange {
 public:
  /// Encodes the `pieces` equal pieces of `from` in the order piece(0), piece(1), ..., which groups them by destination
  /// rank.
  template <class Piece>
  Exchange(Communicator& group, GradReduceFormat wire, const Tensor& from, i64 pieces, const Piece& piece)
      : sent_(room(wire, from)), received_(room(wire, from)) {
    const i64 count = from.numel() / pieces, each = message_elements(sent_.dtype(), count);
    for (i64 i = 0; i < pieces; ++i) {
      Tensor to = sent_.flat(i * each, each);
      ops::pack(from.flat(piece(i) * count, count), to);
    }
    work_ = group.all_to_all(sent_, received_);
  }

  /// Waits and frees the send buffer.
  void wait() {
    work_.wait();
    sent_ = Tensor();
  }

  /// Waits and sets `sum` to the sum of the pieces that all ranks sent to this one.
  void sum_into(Tensor& sum) {
    wait();
    ops::sum_unpacked(received_, sum);
  }

 private:
  static Tensor room(GradReduceFormat wire, const Tensor& numbers) {
    const DType type = message_type(wire);
    return Tensor::empty({message_elements(type, numbers.numel())}, type, numbers.device(), MemoryClass::Grads);
  }

  Tensor sent_, received_;
  Work work_;
};

Work reduce_at_once(Communicator& group, GradReduceFormat wire, const Tensor& full, const Tensor& part) {
  const auto exchange = std::make_shared<Exchange>(group, wire, full, 1, [](i64 i) { return i; });
  return Work([exchange, to = Tensor(part)]() mutable { exchange->sum_into(to); });
}

/// Reduces within a node of k ranks, where `full` has part n * k + j for rank j of node n. Returns the parts j, k + j,
/// ... for this rank's index j, summed over the node.
Tensor reduce_within_node(Communicator& node, GradReduceFormat wire, i64 nodes, const Tensor& full) {
  const i64 k = node.size();
  Exchange inside(node, wire, full, k * nodes, [=](i64 i) { return i % nodes * k + i / nodes; });
  inside.wait();
  Tensor sum = Tensor::empty({full.numel() / k}, full.dtype(), full.device(), MemoryClass::Grads);
  inside.sum_into(sum);
  return sum;
}

/// Waits for the sums within the node immediately, which leaves the inter-node network the time until the caller waits.
Work reduce_by_nodes(Communicator& node, Communicator& across, GradReduceFormat wire, const Tensor& full,
                     const Tensor& part) {
  return reduce_at_once(across, wire, reduce_within_node(node, wire, across.size(), full), part);
}

}  // namespace

Work compressed_reduce_scatter(const DataParallelGroups& groups, GradReduceFormat wire, const Tensor& full,
                               const Tensor& part) {
  MCPP_CHECK(full.numel() == groups.shard.size() * part.numel(), "a part of ", part.numel(), " of ", full.numel(),
             " gradients");
  if (!groups.node) return reduce_at_once(groups.shard, wire, full, part);
  return reduce_by_nodes(*groups.node, *groups.across, wire, full, part);
}

}  // namespace mcpp
