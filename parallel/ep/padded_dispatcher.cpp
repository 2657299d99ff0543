#include "parallel/ep/padded_dispatcher.h"

#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {

PaddedDispatcher::PaddedDispatcher(std::unique_ptr<TokenDispatcher> inner, i64 rows, Device& device)
    : inner_(std::move(inner)), rows_(inner_->rows().size(), rows) {
  std::vector<i32> sources, places;
  for (const i64 count : inner_->rows()) {
    MCPP_CHECK(count <= rows, "an expert takes ", count, " rows, more than ", rows);
    for (i64 row = 0; row < rows; ++row) {
      const bool is_taken = row < count;
      if (is_taken) places.push_back(static_cast<i32>(sources.size()));
      sources.push_back(is_taken ? static_cast<i32>(places.size()) - 1 : -1);
    }
  }
  places_ = integers(places, device);
  sources_ = integers(sources, {static_cast<i64>(sources.size()), 1}, device);
}

Tensor PaddedDispatcher::padded(const Tensor& rows) const {
  Tensor all = Tensor::like(rows, {sources_.dim(0), rows.dim(1)});
  ops::combine_rows(rows, sources_, nullptr, all);
  return all;
}

Tensor PaddedDispatcher::without_padding(const Tensor& rows) const {
  Tensor taken = Tensor::like(rows, {places_.numel(), rows.dim(1)});
  ops::gather_rows(rows, places_, taken);
  return taken;
}

Tensor PaddedDispatcher::dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) {
  return padded(inner_->dispatch(tokens, overlap_fn));
}

TokenDispatcher::Combined PaddedDispatcher::combine(const Tensor& y, const Tensor& weights) {
  return inner_->combine(without_padding(y), weights);
}

TokenDispatcher::Gradients PaddedDispatcher::combine_backward(const Tensor& d_out, const Tensor& kept,
                                                              const Tensor& weights) {
  Gradients gradients = inner_->combine_backward(d_out, kept, weights);
  gradients.rows = padded(gradients.rows);
  return gradients;
}

Tensor PaddedDispatcher::dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) {
  return inner_->dispatch_backward(without_padding(d_rows), overlap_fn);
}

}  // namespace mcpp
