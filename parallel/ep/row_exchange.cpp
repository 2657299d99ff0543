#include "parallel/ep/row_exchange.h"

#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {

RowExchange::RowExchange(Communicator& group, const Tensor& destinations, std::span<const i64> sent,
                         std::span<const i64> received)
    : group_(group), sent_(consecutive_parts(sent)), received_(consecutive_parts(received)) {
  sources_ = Tensor::empty({end_of(sent_)}, DType::I32, destinations.device());
  slots_ = Tensor::like(destinations);
  ops::sort_choices(destinations, {0, group.size()}, sources_, slots_);
}

Tensor RowExchange::send(const Tensor& rows, const OverlapFn& overlap_fn) const {
  const i64 width = rows.dim(1);
  Tensor outgoing = Tensor::like(rows, {sources_.numel(), width});
  ops::gather_rows(rows, sources_, outgoing);
  Tensor arrived = Tensor::like(rows, {received_rows(), width});
  Work exchange = group_.all_to_all_v(outgoing, elements_of(sent_, width), arrived, elements_of(received_, width));
  overlap_fn();
  exchange.wait();
  return arrived;
}

Tensor RowExchange::return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const {
  const i64 width = rows.dim(1);
  Tensor parts = Tensor::like(rows, {sources_.numel(), width});
  Work exchange = group_.all_to_all_v(rows, elements_of(received_, width), parts, elements_of(sent_, width));
  overlap_fn();
  exchange.wait();
  Tensor sums = Tensor::like(rows, {slots_.dim(0), width});
  ops::combine_rows(parts, slots_, nullptr, sums);
  return sums;
}

}  // namespace mcpp
