#include "model/mup.h"

#include <cmath>

namespace mcpp {

bool is_hidden_matrix(const Param& param) {
  const bool is_input_or_output = param.name.starts_with("embedding.") || param.name.starts_with("output_layer.");
  return param.init == Init::Normal && param.box.global.size() > 1 && !is_input_or_output;
}

void apply_mup(const ModelConfig& config, Param& param) {
  if (!config.mup.is_used || !is_hidden_matrix(param)) return;
  param.width_mult = config.width_mult();
  param.init_std /= std::sqrt(param.width_mult);
}

}  // namespace mcpp
