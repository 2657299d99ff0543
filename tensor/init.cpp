#include "base/philox.h"
#include "tensor/ops.h"
#include "tensor/param.h"

namespace mcpp {
namespace {

/// Calls f(local, global) for the first element of each contiguous row (the last axis) of the box.
template <class F>
void for_each_row(const Box& box, F&& f) {
  const i64 axes = static_cast<i64>(box.shape.size());
  const i64 row = box.shape.back(), rows = row == 0 ? 0 : numel(box.shape) / row;
#pragma omp parallel for schedule(static)
  for (i64 r = 0; r < rows; ++r) {
    i64 rest = r, global = box.offset.back(), stride = box.global.back();
    for (i64 axis = axes - 2; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      global += (box.offset[a] + rest % box.shape[a]) * stride;
      rest /= box.shape[a];
      stride *= box.global[a];
    }
    f(r * row, global);
  }
}

}  // namespace

void initialize(Param& param, u64 seed) {
  Tensor host = param.value;
  const u64 key = philox_key(seed, param.name);
  const i64 row = param.box.shape.back();
  on_float(host.dtype(), [&]<class T>() {
    T* data = host.data<T>();
    for_each_row(param.box, [&](i64 local, i64 global) {
      for (i64 i = 0; i < row; ++i) {
        const double x = param.init == Init::Normal ? param.init_std * philox_normal(key, static_cast<u64>(global + i))
                                                    : (param.init == Init::Ones ? 1.0 : 0.0);
        data[local + i] = from_double<T>(x);
      }
    });
  });
}

}  // namespace mcpp
