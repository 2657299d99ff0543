// Device utilization of a step.
#pragma once
#include "plan/cost/workload.h"

namespace mcpp {

/// Returns TFLOP/s per device of the model's operations (model/flops.h), without recomputation.
double model_tflops(const PredictionInput& input, double step_seconds);
/// Returns the MFU: model_tflops() over the device's peak, in low precision over the bf16 peak.
double model_flops_utilization(const PredictionInput& input, double step_seconds);
/// Returns the HFU: the MFU plus the operations of recomputed layers and recomputed attention.
double hardware_flops_utilization(const PredictionInput& input, double step_seconds);

}  // namespace mcpp
