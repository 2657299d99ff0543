// Ops of recurrent mixers (tensor/ops/scan/scan_shape.h). They accept the complete projection and use some of its
// channels, so that no slices are copied.
#pragma once
#include "tensor/ops/positions.h"
#include "tensor/ops/scan/scan_shape.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Parameters of the recurrence, [heads] each.
struct ScanParams {
  Tensor a_log, dt_bias;
  Tensor skip;  ///< StateSpace only
};

/// Documents and the state before the first token. The state is reset where a document begins.
struct ScanPositions {
  i64 first = 0;  ///< position of the first row; the following rows have consecutive positions
  Tensor starts;  ///< int32 [s, b], see Positions::starts; undefined = 0
};

/// Gradients of the recurrence's parameters, of each sample separately: [b, heads], fp32 (fp64).
struct ScanParamGradients {
  Tensor a_log, dt_bias;
  Tensor skip;  ///< StateSpace only
};

/// Weight of a causal depthwise convolution over positions, with a kernel of `taps` positions.
struct ConvParams {
  Tensor weight;  ///< [groups, conv_width, taps]; the last tap multiplies the current position
  Tensor bias;    ///< [groups, conv_width] or undefined
};

namespace ops {

// p: [s, b, groups * width], the projection. x: [s, b, groups * conv_width], q, k and v after the convolution. y: [s,
// b, heads * value_dim].

/// Computes x = silu(convolution of p + bias) within documents. `state`, if not null, has the inputs at the preceding
/// positions, [taps - 1, b, groups * conv_width], and receives those of the last positions; otherwise they are 0.
void short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv, const ScanPositions& positions,
                Tensor* state, Tensor& x);
/// Writes the gradient of the convolution's channels to dp, and leaves its other channels unchanged. dx is overwritten.
/// d_weight and d_bias (fp32, fp64) are multiplied by `beta` before the gradient is added; d_bias may be null.
void short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                         const ScanPositions& positions, Tensor& dx, Tensor& dp, Tensor& d_weight, Tensor* d_bias,
                         float beta);

/// Computes y in chunks of 64 positions, as GEMMs. `state`, if not null, fp32 (fp64) [b, heads, key_dim,
/// value_dim], has the states before the first position, which are not read if a document begins there, and receives
/// those after the last; otherwise they begin at 0.
void gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p, const ScanParams& params,
                const ScanPositions& positions, Tensor* state, Tensor& y);
/// Overwrites dx, the gates of the recurrence in dp, and `gradients`. The states at the boundaries of chunks are
/// recomputed from x and p.
void gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x, const Tensor& p,
                         const ScanParams& params, const ScanPositions& positions, Tensor& dx, Tensor& dp,
                         ScanParamGradients& gradients);

/// Computes out = w rms_norm(y) silu(z) for each head with w [value_dim] (DeltaRule), or out = w rms_norm(y silu(z))
/// for each group with w [heads * value_dim] (StateSpace), where z are the channels of the output gate in p.
void gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w, double eps, Tensor& out);
/// Overwrites dy, which may alias d_out, and the channels of the output gate in dp. dw, fp32 (fp64) [rows, size of w],
/// receives one partial sum per block of kGatedNormRows positions and samples.
void gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y, const Tensor& p, const Tensor& w,
                         double eps, Tensor& dy, Tensor& dp, Tensor& dw);
inline constexpr i64 kGatedNormRows = 32;

}  // namespace ops

/// Length of the chunks of a scan.
inline constexpr i64 kScanChunk = 64;
/// Sizes of matrices in a scan are padded to a multiple of this number, the largest number of lanes of a vector.
inline constexpr i64 kScanPadding = 16;
constexpr i64 scan_padded(i64 n) {
  return (n + kScanPadding - 1) / kScanPadding * kScanPadding;
}

/// Backend implementations, as in Kernels. `states`: workspace, fp32 (fp64) [b, groups, chunks, heads_per_group,
/// padded key_dim, padded value_dim].
template <DeviceType D>
struct ScanKernels {
  static decltype(ops::short_conv) short_conv;
  static decltype(ops::short_conv_backward) short_conv_backward;
  static decltype(ops::gated_scan) gated_scan;
  static void gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x, const Tensor& p,
                                  const ScanParams& params, const ScanPositions& positions, Tensor& states, Tensor& dx,
                                  Tensor& dp, ScanParamGradients& gradients);
  static decltype(ops::gated_norm) gated_norm;
  static decltype(ops::gated_norm_backward) gated_norm_backward;
};

}  // namespace mcpp
