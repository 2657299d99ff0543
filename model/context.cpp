#include "model/context.h"

#include <cmath>

#include "base/philox.h"
#include "tensor/ops.h"
#include "tensor/pass.h"

namespace mcpp {

double ModelContext::output_init_std() const {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

Dropout ModelContext::dropout_for(double p, const std::string& site, const Pass& pass) const {
  if (p == 0 || !pass.training) return {};
  return {.p = static_cast<float>(p),
          .key = philox_key(seed, "dropout." + site),
          .samples = pass.samples,
          .first_position = pass.first_position};
}

}  // namespace mcpp
