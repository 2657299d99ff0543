#include "tensor/ops/scan/gated_scan.h"

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/op_records.h"

namespace mcpp::ops {
namespace {

/// Returns the record of a scan over the positions of p that takes as long as `passes` scans forward. Per position and
/// head, a chunk of C positions multiplies queries with keys and scores with values, and reads and updates the state.
/// A delta rule also multiplies keys with keys, solves for C corrections of keys and values, and reads the state for
/// them.
OpRecord scan_record(const ScanShape& shape, std::initializer_list<const Tensor*> tensors, const Tensor& p,
                     double passes) {
  OpRecord record = memory_record(tensors);
  const auto keys = static_cast<double>(shape.key_dim), values = static_cast<double>(shape.value_dim),
             chunk = static_cast<double>(kScanChunk);
  double flops = 2 * chunk * (keys + values) + 4 * keys * values;
  if (shape.is_delta()) flops += 2 * chunk * keys + chunk * (keys + values) + 2 * keys * values;
  record.flops = passes * flops * static_cast<double>(p.dim(0) * p.dim(1) * shape.heads());
  return record;
}

void check_scan_shape(const char* op, const ScanShape& shape) {
  MCPP_CHECK(shape.groups > 0 && shape.heads_per_group > 0 && shape.key_dim > 0 && shape.value_dim > 0, op,
             ": groups, heads per group, key_dim and value_dim must be positive, not ", shape.groups, ", ",
             shape.heads_per_group, ", ", shape.key_dim, ", ", shape.value_dim);
}

/// Checks that t is [s, b, channels] of the dtype of p.
void check_channels(const char* op, const char* name, const Tensor& t, const Tensor& p, i64 channels) {
  check_shape(op, name, t, {p.dim(0), p.dim(1), channels});
  MCPP_CHECK(t.dtype() == p.dtype(), op, ": ", name, " must be ", name_of(p.dtype()), ", not ", name_of(t.dtype()));
}

void check_projection(const char* op, const ScanShape& shape, const Tensor& p) {
  check_scan_shape(op, shape);
  MCPP_CHECK(p.rank() == 3 && is_float(p.dtype()) && p.dim(2) == shape.groups * shape.width(), op,
             ": the projection must be [s, b, ", shape.groups * shape.width(), "], not ", p.shape());
}

void check_starts(const char* op, const ScanPositions& positions, const Tensor& p) {
  MCPP_CHECK(positions.first >= 0, op, ": the first position must not be negative, but is ", positions.first);
  if (!positions.starts.defined()) return;
  MCPP_CHECK(positions.starts.dtype() == DType::I32 && positions.starts.shape() == Shape({p.dim(0), p.dim(1)}), op,
             ": document starts must be int32 ", Shape{p.dim(0), p.dim(1)}, ", not ", positions.starts.shape());
}

void check_conv(const char* op, const ScanShape& shape, const Tensor& p, const ConvParams& conv) {
  check_projection(op, shape, p);
  MCPP_CHECK(conv.weight.defined() && conv.weight.rank() == 3 && conv.weight.dim(2) >= 1 && conv.weight.dim(2) <= 8, op,
             ": the weight must be [groups, channels, taps] with 1 to 8 taps");
  check_vector(op, "weight", conv.weight, p, shape.groups * shape.conv_width() * conv.weight.dim(2));
  if (conv.bias.defined()) check_vector(op, "bias", conv.bias, p, shape.groups * shape.conv_width());
}

void check_params(const char* op, const ScanShape& shape, const ScanParams& params, const Tensor& p) {
  check_vector(op, "a_log", params.a_log, p, shape.heads());
  check_vector(op, "dt_bias", params.dt_bias, p, shape.decays());
  if (shape.rule == ScanRule::StateSpace) check_vector(op, "skip", params.skip, p, shape.heads());
}

i64 norm_weight_size(const ScanShape& shape) {
  return shape.is_delta() ? shape.value_dim : shape.heads() * shape.value_dim;
}

}  // namespace

void short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv, const ScanPositions& positions,
                Tensor* state, Tensor& x) {
  check_conv("short_conv", shape, p, conv);
  check_starts("short_conv", positions, p);
  const i64 channels = shape.groups * shape.conv_width();
  check_channels("short_conv", "x", x, p, channels);
  if (state) check_vector("short_conv", "state", *state, p, (conv.weight.dim(2) - 1) * p.dim(1) * channels);
  const auto describe = [&] { return memory_record({&p, &x}); };
  on_device(p, describe, [&]<DeviceType D>() { ScanKernels<D>::short_conv(shape, p, conv, positions, state, x); });
}

void short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                         const ScanPositions& positions, Tensor& dx, Tensor& dp, Tensor& d_weight, Tensor* d_bias,
                         float beta) {
  check_conv("short_conv_backward", shape, p, conv);
  check_starts("short_conv_backward", positions, p);
  check_channels("short_conv_backward", "dx", dx, p, shape.groups * shape.conv_width());
  check_same("short_conv_backward", "dp", dp, p);
  check_accumulate_dtype("short_conv_backward", "d_weight", d_weight, p, conv.weight.numel());
  if (d_bias) check_accumulate_dtype("short_conv_backward", "d_bias", *d_bias, p, shape.groups * shape.conv_width());
  on_device(
      p,
      [&] {
        return memory_record({&p, &dx, &dx, &dp});
      },
      [&]<DeviceType D>() {
        ScanKernels<D>::short_conv_backward(shape, p, conv, positions, dx, dp, d_weight, d_bias, beta);
      });
}

void gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p, const ScanParams& params,
                const ScanPositions& positions, Tensor* state, Tensor& y) {
  check_projection("gated_scan", shape, p);
  check_starts("gated_scan", positions, p);
  check_params("gated_scan", shape, params, p);
  check_channels("gated_scan", "x", x, p, shape.groups * shape.conv_width());
  check_channels("gated_scan", "y", y, p, shape.heads() * shape.value_dim);
  if (state)
    check_accumulate_dtype("gated_scan", "state", *state, p,
                           p.dim(1) * shape.heads() * shape.key_dim * shape.value_dim);
  const auto describe = [&] { return scan_record(shape, {&x, &p, &y}, p, 1); };
  on_device(p, describe, [&]<DeviceType D>() { ScanKernels<D>::gated_scan(shape, x, p, params, positions, state, y); });
}

void gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x, const Tensor& p,
                         const ScanParams& params, const ScanPositions& positions, Tensor& dx, Tensor& dp,
                         ScanParamGradients& gradients) {
  check_projection("gated_scan_backward", shape, p);
  check_starts("gated_scan_backward", positions, p);
  check_params("gated_scan_backward", shape, params, p);
  check_channels("gated_scan_backward", "x", x, p, shape.groups * shape.conv_width());
  check_channels("gated_scan_backward", "dy", dy, p, shape.heads() * shape.value_dim);
  check_same("gated_scan_backward", "dx", dx, x);
  check_same("gated_scan_backward", "dp", dp, p);
  const i64 batch = p.dim(1);
  check_accumulate_dtype("gated_scan_backward", "d_a_log", gradients.a_log, p, batch * shape.heads());
  check_accumulate_dtype("gated_scan_backward", "d_dt_bias", gradients.dt_bias, p, batch * shape.decays());
  if (shape.rule == ScanRule::StateSpace)
    check_accumulate_dtype("gated_scan_backward", "d_skip", gradients.skip, p, batch * shape.heads());
  Tensor states = Tensor::empty({batch, shape.groups, p.dim(0) / kScanChunk, shape.heads_per_group,
                                 scan_padded(shape.key_dim), scan_padded(shape.value_dim)},
                                accumulate_dtype(p.dtype()), p.device(), MemoryClass::Workspace);
  constexpr double kPasses = 3;  // two gradients of each product, and the states again
  const auto describe = [&] { return scan_record(shape, {&x, &p, &dy, &dx, &dp, &states, &states}, p, kPasses); };
  on_device(p, describe, [&]<DeviceType D>() {
    ScanKernels<D>::gated_scan_backward(shape, dy, x, p, params, positions, states, dx, dp, gradients);
  });
}

void gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w, double eps, Tensor& out) {
  check_projection("gated_norm", shape, p);
  check_channels("gated_norm", "y", y, p, shape.heads() * shape.value_dim);
  check_channels("gated_norm", "out", out, p, shape.heads() * shape.value_dim);
  check_vector("gated_norm", "weight", w, p, norm_weight_size(shape));
  const auto describe = [&] { return memory_record({&y, &y, &out}); };
  on_device(p, describe, [&]<DeviceType D>() { ScanKernels<D>::gated_norm(shape, y, p, w, eps, out); });
}

void gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y, const Tensor& p, const Tensor& w,
                         double eps, Tensor& dy, Tensor& dp, Tensor& dw) {
  check_projection("gated_norm_backward", shape, p);
  for (const Tensor* t : std::initializer_list<const Tensor*>{&d_out, &y, &dy})
    check_channels("gated_norm_backward", "d_out, y and dy", *t, p, shape.heads() * shape.value_dim);
  check_same("gated_norm_backward", "dp", dp, p);
  check_vector("gated_norm_backward", "weight", w, p, norm_weight_size(shape));
  check_accumulate_dtype("gated_norm_backward", "dw", dw, p,
                         ceil_div(p.dim(0) * p.dim(1), kGatedNormRows) * norm_weight_size(shape));
  const auto describe = [&] { return memory_record({&d_out, &y, &y, &dy, &dp}); };
  on_device(p, describe,
            [&]<DeviceType D>() { ScanKernels<D>::gated_norm_backward(shape, d_out, y, p, w, eps, dy, dp, dw); });
}

}  // namespace mcpp::ops
