// Ops of recurrent mixers (tensor/ops/scan/scan_shape.h). Ops read the channels that they need from the complete
// projection p, so that no slices are copied.
#pragma once
#include "tensor/ops/positions.h"
#include "tensor/ops/scan/scan_shape.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Parameters of the recurrence.
struct ScanParams {
  Tensor a_log;    ///< [heads]
  Tensor dt_bias;  ///< [decays]
  Tensor skip;     ///< StateSpace only, [heads]
};

/// Positions and documents of the rows of a scan. The state is reset at the first token of each document.
struct ScanPositions {
  i64 first = 0;  ///< position of row 0; rows have consecutive positions
  Tensor starts;  ///< int32 [s, b], see Positions::starts; undefined = 0
};

/// Gradients of ScanParams, separate for each sample: [b, size of the parameter], fp32 (fp64).
struct ScanParamGradients {
  Tensor a_log, dt_bias;
  Tensor skip;  ///< StateSpace only
};

/// Parameters of a causal depthwise convolution over `taps` positions.
struct ConvParams {
  Tensor weight;  ///< [groups, conv_width, taps]; the last tap multiplies the current position
  Tensor bias;    ///< [groups, conv_width] or undefined
};

namespace ops {

// Shapes of arguments: p [s, b, groups * width] is the projection, x [s, b, groups * conv_width] are q, k and v after
// the convolution, and y is [s, b, heads * value_dim].

/// Computes x = silu(convolution of p + bias) within documents. If not null, `state` [taps - 1, b, groups * conv_width]
/// provides the inputs of the preceding positions and receives the inputs of the last positions. Otherwise the
/// preceding inputs are 0.
void short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv, const ScanPositions& positions,
                Tensor* state, Tensor& x);
/// Computes the gradients of short_conv(). Writes only the channels of the convolution in dp. Overwrites dx. Multiplies
/// d_weight and d_bias (fp32 or fp64) by `beta` and adds the gradient. d_bias may be null.
void short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                         const ScanPositions& positions, Tensor& dx, Tensor& dp, Tensor& d_weight, Tensor* d_bias,
                         float beta);

/// Computes y by the recurrence of ScanRule, in chunks of kScanChunk positions and with GEMMs. If not null, `state`,
/// fp32 (fp64) [b, heads, key_dim, value_dim], provides the states before the first position, unless a document begins
/// there, and receives the states after the last position. Otherwise the initial states are 0.
void gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p, const ScanParams& params,
                const ScanPositions& positions, Tensor* state, Tensor& y);
/// Computes the gradients of gated_scan(). Overwrites dx, the gates of the recurrence in dp, and `gradients`.
/// Recomputes the states at chunk boundaries from x and p.
void gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x, const Tensor& p,
                         const ScanParams& params, const ScanPositions& positions, Tensor& dx, Tensor& dp,
                         ScanParamGradients& gradients);

/// Computes out = w rms_norm(y) silu(z) for each head with w [value_dim] (DeltaRule), out = w rms_norm(y) sigmoid(z)
/// (ChannelDeltaRule), or out = w rms_norm(y silu(z)) for each group with w [heads * value_dim] (StateSpace), where z
/// are the channels of the output gate in p.
void gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w, double eps, Tensor& out);
/// Computes the gradients of gated_norm(). Overwrites dy, which may alias d_out, and the output gate in dp. dw, fp32
/// (fp64) [ceil(s * b / kGatedNormRows), size of w], receives one partial sum per block of kGatedNormRows rows.
void gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y, const Tensor& p, const Tensor& w,
                         double eps, Tensor& dy, Tensor& dp, Tensor& dw);
inline constexpr i64 kGatedNormRows = 32;

}  // namespace ops

/// Number of positions in a chunk of a scan.
inline constexpr i64 kScanChunk = 64;
/// Matrix sizes in a scan are padded to a multiple of this value, the maximum number of vector lanes.
inline constexpr i64 kScanPadding = 16;
constexpr i64 scan_padded(i64 n) {
  return (n + kScanPadding - 1) / kScanPadding * kScanPadding;
}

/// Backend implementations, like Kernels. `states` is a workspace, fp32 (fp64) [b, groups, chunks, heads_per_group,
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
