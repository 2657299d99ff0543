#include "model/config/context.h"

#include <cmath>

#include "base/philox.h"
#include "nn/pass.h"
#include "tensor/ops/ops.h"

namespace mcpp {

double ModelContext::output_init_std() const {
  return config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

i64 ModelContext::first_position(const Tensor& x, const Pass& pass) const {
  return pass.first_position + (splits_sequence() ? tp.rank() * x.dim(0) : 0);
}

Dropout ModelContext::dropout_for(double p, const std::string& site, i64 first_position, const Pass& pass) const {
  if (p == 0 || !pass.training) return {};
  return {.p = static_cast<float>(p),
          .key = philox_key(seed, "dropout." + site),
          .samples = pass.samples,
          .first_position = first_position};
}

AlongAxis ModelContext::holders_of_word_embeddings() const {
  if (config.untie_embeddings_and_output_weights || output_rank == 0) return {};
  return {Spread::Partial, Holders{.first = 0, .count = 2, .stride = output_rank}};
}

void ModelContext::place_in_stream(Param& param) const {
  param.placement.tp = {gradient_spread(stream())};
}

}  // namespace mcpp
