#include "parallel/dp/store.h"

#include <memory>

#include "tensor/ops/low_precision/pack.h"
#include "tensor/ops/ops.h"

namespace mcpp {

namespace {

/// Pending all-to-all of encoded equal chunks of a tensor.
class Exchange {
 public:
  /// Encodes the `chunks` equal chunks of `from` in the order chunk(0), chunk(1), ..., which groups them by destination
  /// rank.
  template <class Chunk>
  Exchange(Communicator& group, GradReduceFormat format, const Tensor& from, i64 chunks, const Chunk& chunk)
      : sent_(make_message(format, from)), received_(make_message(format, from)) {
    const i64 count = from.numel() / chunks, message_size = message_elements(sent_.dtype(), count);
    for (i64 i = 0; i < chunks; ++i) {
      Tensor to = sent_.flat(i * message_size, message_size);
      ops::pack(from.flat(chunk(i) * count, count), to);
    }
    work_ = group.all_to_all(sent_, received_);
  }

  /// Waits and frees the send buffer.
  void wait() {
    work_.wait();
    sent_ = Tensor();
  }

  /// Waits and sets `sum` to the sum of the chunks that all ranks sent to this one.
  void sum_into(Tensor& sum) {
    wait();
    ops::sum_unpacked(received_, sum);
  }

 private:
  static Tensor make_message(GradReduceFormat format, const Tensor& values) {
    const DType type = message_type(format);
    return Tensor::empty({message_elements(type, values.numel())}, type, values.device(), MemoryClass::Grads);
  }

  Tensor sent_, received_;
  Work work_;
};

Work start_compressed_reduce(Communicator& group, GradReduceFormat format, const Tensor& full, const Tensor& part) {
  const auto exchange = std::make_shared<Exchange>(group, format, full, 1, [](i64 i) { return i; });
  return Work([exchange, to = Tensor(part)]() mutable { exchange->sum_into(to); });
}

/// Reduces within a node of k ranks, where `full` has part n * k + j for rank j of node n. Returns the parts j, k + j,
/// ... for this rank's index j, summed over the node.
Tensor reduce_within_node(Communicator& node, GradReduceFormat format, i64 nodes, const Tensor& full) {
  const i64 k = node.size();
  Exchange exchange(node, format, full, k * nodes, [=](i64 i) { return i % nodes * k + i / nodes; });
  exchange.wait();
  Tensor sum = Tensor::empty({full.numel() / k}, full.dtype(), full.device(), MemoryClass::Grads);
  exchange.sum_into(sum);
  return sum;
}

/// Waits for the sums within the node immediately, which leaves the inter-node network the time until the caller waits.
Work start_hierarchical_reduce(Communicator& node, Communicator& inter_node, GradReduceFormat format,
                               const Tensor& full, const Tensor& part) {
  return start_compressed_reduce(inter_node, format, reduce_within_node(node, format, inter_node.size(), full), part);
}

}  // namespace

Work compressed_reduce_scatter(const DataParallelGroups& groups, GradReduceFormat format, const Tensor& full,
                               const Tensor& part) {
  MCPP_CHECK(full.numel() == groups.shard.size() * part.numel(), "a part of ", part.numel(), " of ", full.numel(),
             " gradients");
  if (!groups.intra_node) return start_compressed_reduce(groups.shard, format, full, part);
  return start_hierarchical_reduce(*groups.intra_node, *groups.inter_node, format, full, part);
}

Work StoreContext::reduce_scatter(const Tensor& full, Tensor& shard) const {
  // A single rank sends nothing.
  if (grad_reduce_format != GradReduceFormat::Full && groups.shard.size() > 1)
    return compressed_reduce_scatter(groups, grad_reduce_format, full, shard);
  return groups.shard.reduce_scatter(full, shard);
}

void StoreContext::make_views(std::size_t bucket, const Tensor& full, Tensor Param::*member) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) {
    params[i]->*member = full.flat(plan.offsets[i] - b.begin, params[i]->numel()).view(params[i]->box.shape);
  }
}

void StoreContext::drop_views(std::size_t bucket, Tensor Param::*member) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) params[i]->*member = Tensor();
}

void StoreContext::zero_padding(std::size_t bucket, const Tensor& full) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) {
    const i64 begin = plan.offsets[i] + params[i]->numel(), end = i + 1 < b.end_param ? plan.offsets[i + 1] : b.end;
    Tensor padding = full.flat(begin - b.begin, end - begin);
    ops::fill_zero(padding);
  }
}

void StoreContext::zero_missing_grads(std::size_t bucket) const {
  const Bucket& b = plan.buckets[bucket];
  for (std::size_t i = b.first_param; i < b.end_param; ++i) zero_missing_grad(*params[i]);
}

void zero_missing_grad(Param& param) {
  if (param.has_grad()) return;
  param.add_grad([](Tensor& sum, float) { ops::fill_zero(sum); });
}

}  // namespace mcpp
