// Experts that always work on as many rows, whatever comes: rows of zeros fill up what no token takes. They do not
// travel.
#pragma once
#include <vector>

#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class PaddedDispatcher final : public TokenDispatcher {
 public:
  /// `rows` of each expert, no fewer than `inner` has of any.
  PaddedDispatcher(std::unique_ptr<TokenDispatcher> inner, i64 rows, Device& device);

  Tensor dispatch(const Tensor& tokens, const Meanwhile& meanwhile) override;
  std::span<const i64> rows() const override { return rows_; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const Meanwhile& meanwhile) override;

 private:
  Tensor padded(const Tensor& rows) const;
  Tensor without_padding(const Tensor& rows) const;

  std::unique_ptr<TokenDispatcher> inner_;
  std::vector<i64> rows_;
  Tensor sources_;  // int32 [all padded rows, 1]: which of the rows that came; -1 = none
  Tensor places_;   // int32 [all rows that came]: where each lies among the padded ones
};

}  // namespace mcpp
