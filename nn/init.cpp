#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "base/philox.h"
#include "nn/param.h"
#include "tensor/cpu/normal_draws.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the index in the global tensor of the first element of row `r` (along the last axis) of the box.
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

/// Returns a uniform number in (0, 1).
double uniform(u64 key, u64 index) {
  return uniform_open(philox4x32(key, {static_cast<u32>(index), static_cast<u32>(index >> 32), 0, 0})[0]);
}

/// Returns the initial value of an element, unless it is normally distributed.
double draw_value(const Param& param, u64 key, u64 index) {
  switch (param.init) {
    case Init::Zeros:
      return 0;
    case Init::Ones:
      return 1;
    case Init::DecayRate:
      return std::log(1 + 15 * uniform(key, index));
    case Init::TimeStep:
      return std::log(std::expm1(1e-3 * std::pow(100.0, uniform(key, index))));
    case Init::Normal:
      break;
  }
  fail(ExitCode::Internal, "unknown initialization of ", param.name);
}

/// Sets out[i] to element first + i of the normal stream, times `std`.
template <class T>
void fill_normal(double std, u64 key, u64 first, std::span<T> out) {
  std::array<double, 512> drawn;
  for (std::size_t done = 0; done < out.size(); done += drawn.size()) {
    const std::span part = out.subspan(done, std::min(drawn.size(), out.size() - done));
    draw_normal(key, first + done, std::span(drawn).first(part.size()));
    std::ranges::transform(drawn.begin(), drawn.begin() + static_cast<i64>(part.size()), part.begin(),
                           [std](double x) { return from_double<T>(std * x); });
  }
}

/// Writes elements [begin, end) of row `r` of the box to `out`.
template <class T>
void fill_row(const Param& param, u64 key, i64 r, i64 begin, i64 end, T* out) {
  const auto first = static_cast<u64>(global_index(param.box, r) + begin);
  if (param.init == Init::Normal) return fill_normal(param.init_std, key, first, std::span(out, out + (end - begin)));
  for (i64 i = 0; i < end - begin; ++i) out[i] = from_double<T>(draw_value(param, key, first + static_cast<u64>(i)));
}

/// Initializes values in host memory.
void draw(const Param& param, u64 seed, i64 first, Tensor& values) {
  const u64 key = philox_key(seed, param.name);
  const i64 row = param.box.shape.back(), last = first + values.numel();
  const i64 first_row = first / row, rows = (last - 1) / row + 1 - first_row;
  on_float(values.dtype(), [&]<class T>() {
    parallel_for(cpu(values), rows, 16, [&](i64 begin, i64 end) {
      for (i64 r = first_row + begin; r < first_row + end; ++r) {
        const i64 from = std::max(first, r * row), to = std::min(last, (r + 1) * row);
        fill_row<T>(param, key, r, from - r * row, to - r * row, values.data<T>() + (from - first));
      }
    });
  });
}

/// Initializes values of other devices on the host, so that they are bitwise identical on every device; in chunks to
/// bound host memory.
void draw_on_host(const Param& param, u64 seed, i64 first, Tensor& values) {
  constexpr i64 kChunk = i64{1} << 24;
  CpuDevice host({.threads = omp_get_max_threads()});
  for (i64 begin = 0; begin < values.numel(); begin += kChunk) {
    Tensor chunk = values.flat(begin, std::min(kChunk, values.numel() - begin));
    Tensor drawn = Tensor::empty(chunk.shape(), chunk.dtype(), host, MemoryClass::Workspace);
    draw(param, seed, first + begin, drawn);
    write_bytes(drawn.raw(), chunk);
  }
}

}  // namespace

void initialize(const Param& param, u64 seed, i64 first, Tensor& values) {
  const i64 last = first + values.numel();
  if (first == last) return;
  MCPP_CHECK(first >= 0 && last <= param.numel(), param.name, " has no elements [", first, ", ", last, ")");
  if (values.device().type() == DeviceType::Cpu)
    draw(param, seed, first, values);
  else
    draw_on_host(param, seed, first, values);
}

void initialize(Param& param, u64 seed) {
  Tensor values = param.value.view({-1});
  initialize(param, seed, 0, values);
}

}  // namespace mcpp
