#include "comm/meta.h"

#include <algorithm>

#include "base/check.h"

namespace mcpp {

/// Records collectives of one kind that are in flight at the same time as one if they start after the same op.
/// All-to-alls in flight are always recorded as one, because a sequence with several runs sends several, with only
/// copies between them.
Work MetaCommunicator::record(MessageKind kind, const Tensor& t, i64 elements) {
  OpTrace* trace = trace_of(t);
  if (!trace || size_ == 1) return {};
  std::vector<MessageRecord>& messages = trace->messages;
  const auto bytes = static_cast<double>(elements * size_of(t.dtype()));
  const std::size_t ops = trace->ops.size();
  if (in_flight_ > 0 && kind != MessageKind::Send && !messages.empty() && messages.back().group == name_ &&
      messages.back().kind == kind && (kind == MessageKind::AllToAll || messages.back().first_op == ops))
    messages.back().bytes += bytes;
  else
    messages.push_back({.kind = kind, .group = name_, .bytes = bytes, .first_op = ops, .end_op = ops});
  if (kind == MessageKind::Send) return {};
  ++in_flight_;
  ++messages.back().in_flight;
  auto& device = static_cast<MetaDevice&>(t.device());
  return Work([this, &device, trace, index = messages.size() - 1] {
    --in_flight_;
    if (device.trace() != trace) return;
    --trace->messages[index].in_flight;
    trace->messages[index].end_op = trace->ops.size();
  });
}

Work MetaCommunicator::all_reduce(Tensor& t, ReduceOp) {
  return record(MessageKind::AllReduce, t, t.numel());
}

Work MetaCommunicator::all_gather(const Tensor&, Tensor& full) {
  return record(MessageKind::AllGather, full, full.numel());
}

Work MetaCommunicator::reduce_scatter(const Tensor& full, Tensor&) {
  return record(MessageKind::ReduceScatter, full, full.numel());
}

Work MetaCommunicator::broadcast(Tensor& t, int) {
  return record(MessageKind::Broadcast, t, t.numel());
}

Work MetaCommunicator::all_to_all(const Tensor& in, Tensor&) {
  return record(MessageKind::AllToAll, in, in.numel());
}

Work MetaCommunicator::all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor&,
                                    std::span<const Part> receive) {
  const auto elements = [](std::span<const Part> parts) {
    i64 sum = 0;
    for (const Part& part : parts) sum += part.count;
    return sum;
  };
  return record(MessageKind::AllToAll, in, std::max(elements(send), elements(receive)));
}

Work MetaCommunicator::send(const Tensor& t, int) {
  return record(MessageKind::Send, t, t.numel());
}

Work MetaCommunicator::recv(Tensor&, int) {
  return {};
}

std::unique_ptr<Communicator> MetaCommunicator::split(int, int) {
  fail(ExitCode::Internal, "a group on the meta device cannot be split: it does not know the colors of other ranks");
}

std::unique_ptr<Communicator> make_meta_communicator(i64 size, std::string name) {
  return std::make_unique<MetaCommunicator>(size, std::move(name));
}

}  // namespace mcpp
