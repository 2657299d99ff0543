#include "parallel/ep/row_exchange.h"

#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {
namespace {

/// Returns consecutive parts of these sizes.
std::vector<Part> consecutive_parts(std::span<const i64> sizes) {
  std::vector<Part> parts;
  for (const i64 size : sizes) parts.push_back({parts.empty() ? 0 : parts.back().first + parts.back().count, size});
  return parts;
}

i64 rows_in(const std::vector<Part>& parts) {
  return parts.back().first + parts.back().count;
}

/// Returns the parts in elements of rows of this width.
std::vector<Part> scaled(const std::vector<Part>& rows, i64 width) {
  std::vector<Part> elements;
  for (const Part& part : rows) elements.push_back({part.first * width, part.count * width});
  return elements;
}

}  // namespace

RowExchange::RowExchange(Communicator& group, const Tensor& destinations, std::span<const i64> sent,
                         std::span<const i64> received)
    : group_(group), sent_(consecutive_parts(sent)), received_(consecutive_parts(received)) {
  sources_ = Tensor::empty({rows_in(sent_)}, DType::I32, destinations.device());
  slots_ = Tensor::like(destinations);
  ops::sort_choices(destinations, {0, group.size()}, sources_, slots_);
}

Tensor RowExchange::send(const Tensor& rows, const OverlapFn& overlap_fn) const {
  const i64 width = rows.dim(1);
  Tensor outgoing = Tensor::like(rows, {sources_.numel(), width});
  ops::gather_rows(rows, sources_, outgoing);
  Tensor arrived = Tensor::like(rows, {received_rows(), width});
  Work exchange = group_.all_to_all_v(outgoing, scaled(sent_, width), arrived, scaled(received_, width));
  overlap_fn();
  exchange.wait();
  return arrived;
}

Tensor RowExchange::return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const {
  const i64 width = rows.dim(1);
  Tensor parts = Tensor::like(rows, {sources_.numel(), width});
  Work exchange = group_.all_to_all_v(rows, scaled(received_, width), parts, scaled(sent_, width));
  overlap_fn();
  exchange.wait();
  Tensor sums = Tensor::like(rows, {slots_.dim(0), width});
  ops::combine_rows(parts, slots_, nullptr, sums);
  return sums;
}

}  // namespace mcpp
