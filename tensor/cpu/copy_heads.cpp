#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/copy_heads.cpp"
#include <numeric>
#include <vector>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Returns the offset of a row, and within it of every `run`-th head.
i64 offset_of(const Heads& x, i64 row, i64 batch) {
  return x.offset + row / batch * x.seq_stride + row % batch * x.batch_stride;
}
std::vector<i64> offsets_in_row(const Heads& x, i64 run) {
  std::vector<i64> offsets;
  for (i64 head = 0; head < x.heads; head += run)
    offsets.push_back(head / x.group_size * x.group_stride + head % x.group_size * x.head_dim);
  return offsets;
}

template <class From, class To>
void copy_rows(const Heads& from, Heads& to) {
  using Wider = std::conditional_t<std::is_same_v<From, double>, From, To>;
  constexpr i64 kRowsAhead = 4, kLine = 64;  // prefetch distance: hardware prefetchers miss scattered chunks
  const LaneTag<Wider> d;
  const From* source = from.base.data<From>();
  To* target = to.base.data<To>();
  const i64 run = std::gcd(from.group_size, to.group_size);  // heads that are adjacent in both
  const i64 length = run * to.head_dim;
  const std::vector<i64> from_at = offsets_in_row(from, run), to_at = offsets_in_row(to, run);
  parallel_for(cpu(to.base), to.seq * to.batch, rows_per_chunk(to.heads * to.head_dim), [&](i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
      const i64 prefetch_row = std::min(row + kRowsAhead, end - 1);
      const From *row_source = source + offset_of(from, row, to.batch),
                 *prefetch_source = source + offset_of(from, prefetch_row, to.batch);
      To* destination = target + offset_of(to, row, to.batch);
      for (std::size_t h = 0; h < from_at.size(); ++h) {
        for (i64 i = 0; i < length; i += kLine / i64{sizeof(From)})
          __builtin_prefetch(prefetch_source + from_at[h] + i);
        sweep(d, 0, length, [=, x = row_source + from_at[h], y = destination + to_at[h]](i64 i, auto lanes) {
          store(load(d, x + i, lanes), d, y + i, lanes);
        });
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
