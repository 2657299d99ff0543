// Sums over the rows of a matrix, independent of the number of threads: fixed chunks of rows are summed into separate
// vectors, which are then added in order.
#if defined(MCPP_TENSOR_CPU_PARTIAL_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_PARTIAL_SUMS_INL_H_
#undef MCPP_TENSOR_CPU_PARTIAL_SUMS_INL_H_
#else
#define MCPP_TENSOR_CPU_PARTIAL_SUMS_INL_H_
#endif

#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// One vector of `n` sums per chunk of rows, initially uninitialized. L is float or double.
template <class L>
class PartialSums {
 public:
  PartialSums(i64 rows, i64 n, const Tensor& like)
      : rows_per_chunk(std::max<i64>(64, ceil_div(rows, kMaxChunks))),
        chunks_(ceil_div(rows, rows_per_chunk)),
        sums_(Tensor::empty({chunks_, n}, DTypeOf<L>::value, like.device(), MemoryClass::Workspace)) {}

  const i64 rows_per_chunk;

  /// Returns the sums of the chunk that begins at row `row`.
  L* of_row(i64 row) const { return sums_.data<L>() + row / rows_per_chunk * sums_.dim(1); }

  /// Computes out = beta out + the sums of all chunks, from column `first` on.
  void add_to(Tensor& out, i64 first, float beta) const {
    const LaneTag<L> d;
    const L* sums = sums_.data<L>() + first;
    L* to = out.data<L>();
    parallel_for(cpu(out), out.numel(), kColumnsPerChunk, [=, this](i64 begin, i64 end) {
      sweep(d, begin, end, [=, this](i64 i, auto lanes) {
        auto sum = previous(d, to + i, beta, lanes);
        for (i64 p = 0; p < chunks_; ++p) sum = hn::Add(sum, load(d, sums + p * sums_.dim(1) + i, lanes));
        store(sum, d, to + i, lanes);
      });
    });
  }

 private:
  static constexpr i64 kMaxChunks = 256, kColumnsPerChunk = 256;

  i64 chunks_;
  Tensor sums_;
};

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_PARTIAL_SUMS_INL_H_
