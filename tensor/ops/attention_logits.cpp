#include "tensor/ops/attention_logits.h"

#include "tensor/dtype.h"
#include "tensor/on_device.h"

namespace mcpp::ops {

void max_attention_logits(const QkvHeads& x, const AttentionOptions& options, Tensor& largest) {
  MCPP_CHECK(x.q.head_dim == x.k.head_dim && x.k.heads > 0 && x.q.heads % x.k.heads == 0,
             "max_attention_logits: ", x.q.heads, " heads of ", x.q.head_dim, " channels for ", x.k.heads,
             " key heads of ", x.k.head_dim);
  MCPP_CHECK(largest.numel() == x.q.heads && largest.dtype() == accumulate_dtype(x.q.base.dtype()),
             "max_attention_logits: the result is ", name_of(largest.dtype()), " ", largest.shape(), " for ", x.q.heads,
             " heads of ", name_of(x.q.base.dtype()));
  on_device(largest, [&]<DeviceType D>() { AttentionLogitKernels<D>::max_attention_logits(x, options, largest); });
}

}  // namespace mcpp::ops
