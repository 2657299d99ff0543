#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/copy_heads.cpp"
#include <numeric>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Where head `head` of a row is.
i64 offset_of(const Heads& x, i64 s, i64 b, i64 head) {
  return x.offset + s * x.seq_stride + b * x.batch_stride + head / x.group_size * x.group_stride +
         head % x.group_size * x.head_dim;
}

template <class From, class To>
void copy_rows(const Heads& from, Heads& to) {
  using Wider = std::conditional_t<std::is_same_v<From, double>, From, To>;
  const LaneTag<Wider> d;
  const From* source = from.base.data<From>();
  To* target = to.base.data<To>();
  const i64 run = std::gcd(from.group_size, to.group_size);  // heads that lie side by side in both
  parallel_for(cpu(to.base), to.seq * to.batch, rows_per_piece(to.heads * to.head_dim), [&](i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
      const i64 s = row / to.batch, b = row % to.batch;
      for (i64 head = 0; head < to.heads; head += run) {
        const From* at = source + offset_of(from, s, b, head);
        To* place = target + offset_of(to, s, b, head);
        sweep(d, 0, run * to.head_dim, [=](i64 i, auto lanes) { store(load(d, at + i, lanes), d, place + i, lanes); });
      }
    }
  });
}

void copy_heads(const Heads& from, Heads& to) {
  on_float(from.base.dtype(),
           [&]<class From>() { on_float(to.base.dtype(), [&]<class To>() { copy_rows<From, To>(from, to); }); });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(copy_heads);

template <>
void Kernels<DeviceType::Cpu>::copy_heads(const Heads& from, Heads& to) {
  HWY_DYNAMIC_DISPATCH(copy_heads)(from, to);
}

}  // namespace mcpp
#endif  // HWY_ONCE
