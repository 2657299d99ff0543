// Dispatcher decorator that pads every expert's rows to a fixed number with zeros. Padding is not sent.
#pragma once
#include <vector>

#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class PaddedDispatcher final : public TokenDispatcher {
 public:
  /// `rows` is the padded number of rows per expert, at least the maximum of `inner`.
  PaddedDispatcher(std::unique_ptr<TokenDispatcher> inner, i64 rows, Device& device);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return rows_; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  Tensor padded(const Tensor& rows) const;
  Tensor without_padding(const Tensor& rows) const;

  std::unique_ptr<TokenDispatcher> inner_;
  std::vector<i64> rows_;
  Tensor sources_;  // int32 [padded rows, 1]: source row; -1 = padding
  Tensor places_;   // int32 [received rows]: index among the padded rows
};

}  // namespace mcpp
