// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024), scaled for large models as in
// Liu et al., "Muon is Scalable for LLM Training", 2025: an update is the momentum of a matrix with all singular values
// moved close to 1, times 0.2 sqrt(max(out, in)), which matches the size of AdamW's updates.
//
// A matrix is one linear map between hidden vectors. If a layer fuses several in one weight (queries, keys and values,
// or gate and up), each is a separate matrix (Param::matrices), as in the model of Liu et al. Megatron-LM's
// muon_split_qkv splits queries, keys and values, but not gate and up. Embeddings, the output layer, norms and biases
// use AdamW.
#pragma once
#include <memory>

#include "optimizer/update_rule.h"

namespace mcpp {

/// Returns the rule for a model of type `dtype`. GEMMs use that dtype, except that fp16 models use bf16 for
/// its range.
std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, DType dtype);

/// Moves the singular values of `matrix` [out, in], fp32 (fp64), towards 1 by `steps` Newton-Schulz iterations with
/// Jordan's coefficients: after five, to about 0.7 to 1.2 for values above a few thousandths of the Frobenius norm.
/// GEMMs are in `type`.
void orthogonalize(Tensor& matrix, i64 steps, DType type);

}  // namespace mcpp
