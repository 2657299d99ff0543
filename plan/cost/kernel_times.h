// Kernel times of everything except GEMMs and attention, in seconds per element.
#pragma once
#include "plan/cost/workload.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

struct PassSeconds {
  double forward = 0, backward = 0;
};

/// Times in seconds per element.
struct KernelTimes {
  PassSeconds norm, residual;  ///< each norm or residual of a layer, per element of the residual stream
  PassSeconds heads;           ///< seconds per element of queries, keys and values; includes `rope` if estimated
  PassSeconds rope;            ///< seconds per rotated element
  PassSeconds activation;      ///< seconds per element read or written
  PassSeconds bias;  ///< seconds per element with a bias; 0 if fused into a kernel that reads the element anyway
  PassSeconds dropped_score;  ///< seconds of dropout per pair of a query and a visible key
  PassSeconds embedding;      ///< seconds per element of the residual stream
  double loss = 0;            ///< seconds per logit, forward and backward together
  double copy = 0;            ///< seconds per element read and written
  double update = 0;          ///< seconds per weight of gradient norm and optimizer
};

/// Returns the measured times if there are any, otherwise estimates from the kernels' passes over memory.
KernelTimes kernel_times(const Hardware& hardware, const KernelTraits& program, const Workload& work);

// Predicted time of GEMMs.

/// Returns the seconds of a GEMM on a device. `output_bytes` is the number of bytes accessed per element of the result,
/// including reads. Uses the measured rates if there are any. Otherwise it estimates efficiency from the shape: tiles
/// that do not fill all cores (with split-k if that is faster), a ramp at the beginning and end of each tile, and the
/// bytes of operands and result, which bound small and thin GEMMs.
double gemm_seconds(const Hardware& hardware, GemmType type, const MatmulShape& shape, double output_bytes,
                    GemmPass pass = GemmPass::Forward);

/// Returns the fraction of its attained rate that causal attention of `heads` heads (of all samples) over `keys` keys
/// reaches: short sequences and few heads do not fill the cores until the end.
double attention_efficiency(const Hardware& hardware, i64 keys, i64 heads);

// Number of keys that a query attends to if attention is restricted to documents.

/// Returns the average over samples. Assumes exponentially distributed document lengths with the workload's mean.
double mean_attended_keys(const Workload& work, i64 window, i64 chunk = 0);

}  // namespace mcpp
