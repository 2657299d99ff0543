// How much of its devices a step uses.
#pragma once
#include "plan/cost/job.h"

namespace mcpp {

/// TFLOP/s of one device by the model's operations (model/flops.h), recomputation not counted.
double model_tflops(const Job& job, double step_seconds);
/// The part of the device's peak that it is.
double model_flops_utilization(const Job& job, double step_seconds);
/// The same with what is computed again, as long as whole layers or attention are.
double hardware_flops_utilization(const Job& job, double step_seconds);

}  // namespace mcpp
