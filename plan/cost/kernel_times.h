// How long a rank takes for what is neither a matrix product nor attention: seconds of an element.
#pragma once
#include "plan/cost/layout.h"
#include "plan/hardware/implementation.h"

namespace mcpp {

struct PassSeconds {
  double forward = 0, backward = 0;
};

struct KernelTimes {
  PassSeconds norm, residual;  ///< of each element of the residual stream, once for each of a layer's two
  PassSeconds heads;           ///< of queries, keys and values
  PassSeconds activation;      ///< of each element that it must read or write
  PassSeconds bias;            ///< of each element that has one; where kernels that go over it anyway do it, nothing
  PassSeconds dropped_score;   ///< what dropout adds, of a query and a key that it sees
  PassSeconds embedding;       ///< of each element of the stream
  double loss = 0;             ///< of a logit, forward and backward together
  double copy = 0;             ///< of an element that is read and written
  double update = 0;           ///< of a weight: the norm of gradients and the optimizer
};

/// As measured on the machine, where it was; otherwise the sweeps that the program's kernels make over memory.
KernelTimes kernel_times(const Hardware& hardware, const Implementation& program, const Workload& work);

}  // namespace mcpp
