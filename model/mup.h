// Rules of the maximal update parametrization for parameters.
#pragma once
#include "model/config/config.h"
#include "nn/param.h"

namespace mcpp {

/// Returns true if the inputs of this weight are hidden vectors, whose width grows with the model, and its outputs are
/// not logits: matrices of linear layers, experts, routers and gates. Biases, norms, attention sinks, embeddings and
/// the output layer are not.
bool is_hidden_matrix(const Param& param);

/// With ModelConfig::mup, divides the initial values of hidden matrices by the square root of the width multiplier, and
/// sets Param::width_mult, which determines their learning rate. Other parameters keep their values.
void apply_mup(const ModelConfig& config, Param& param);

}  // namespace mcpp
