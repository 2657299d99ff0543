#include "base/philox.h"
#include "tensor/cpu/parallel.h"
#include "tensor/ops.h"
#include "tensor/param.h"

namespace mcpp {
namespace {

/// Index in the global tensor of the first element of row `r` (along the last axis) of the box.
i64 global_index(const Box& box, i64 r) {
  i64 global = box.offset.back(), stride = box.global.back();
  for (i64 axis = static_cast<i64>(box.shape.size()) - 2; axis >= 0; --axis) {
    const auto a = static_cast<std::size_t>(axis);
    global += (box.offset[a] + r % box.shape[a]) * stride;
    r /= box.shape[a];
    stride *= box.global[a];
  }
  return global;
}

template <class T>
void fill_row(const Param& param, u64 key, i64 r) {
  const i64 row = param.box.shape.back(), global = global_index(param.box, r);
  T* out = param.value.data<T>() + r * row;
  for (i64 i = 0; i < row; ++i) {
    const double x = param.init == Init::Normal ? param.init_std * philox_normal(key, static_cast<u64>(global + i))
                                                : (param.init == Init::Ones ? 1.0 : 0.0);
    out[i] = from_double<T>(x);
  }
}

}  // namespace

void initialize(Param& param, u64 seed) {
  const u64 key = philox_key(seed, param.name);
  const i64 row = param.box.shape.back(), rows = row == 0 ? 0 : param.numel() / row;
  on_float(param.value.dtype(), [&]<class T>() {
    parallel_for(cpu(param.value), rows, 16, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) fill_row<T>(param, key, r);
    });
  });
}

}  // namespace mcpp
