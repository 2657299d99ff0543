// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024), scaled for large models as in
// Liu et al., "Muon is Scalable for LLM Training", 2025: an update is the momentum of a matrix with all singular values
// moved close to 1, times 0.2 sqrt(max(out, in)), which matches the size of AdamW's updates.
//
// A matrix is one linear map between hidden vectors. If a layer fuses several in one weight (queries, keys and values,
// or gate and up), each is a separate matrix (Param::matrices), as in the model of Liu et al. Queries, keys and values
// may also be one matrix, or one for each head (muon_matrices()). Megatron-LM never splits gate and up. Embeddings, the
// output layer, norms and biases use AdamW.
#pragma once
#include <memory>
#include <vector>

#include "nn/param.h"
#include "optimizer/update_rule.h"

namespace mcpp {

/// Returns the rule for a model of type `dtype`. GEMMs use that dtype, except that fp16 models use bf16 for
/// its range.
std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, DType dtype);

/// Returns the parts of a parameter that Muon orthogonalizes separately: Param::matrices, or for the weights of
/// attention heads (Param::head_rows) as muon_split_qkv and muon_split_heads select. Empty if Muon does not update it.
std::vector<Box> muon_matrices(const Param& param, const OptimizerConfig& config);

/// Moves the singular values of `matrix` [out, in], fp32 (fp64), towards 1 by `steps` Newton-Schulz iterations with
/// these coefficients: after five simple ones, to about 0.7 to 1.2 for values above a few thousandths of the Frobenius
/// norm. GEMMs are in `type`.
void orthogonalize(Tensor& matrix, MuonCoefficientType coefficients, i64 steps, DType type);

}  // namespace mcpp
