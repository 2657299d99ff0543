// Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024), scaled for large models as Liu
// et al. do ("Muon is Scalable for LLM Training", 2025): an update is the momentum of a matrix with all of its singular
// values made about 1, times 0.2 sqrt(max(out, in)), which gives it the size of AdamW's.
//
// A matrix is one linear map between hidden vectors: where layers fuse several in one weight, queries, keys and values,
// or gate and up, each is its own (Param::matrices). So does Liu et al.'s model; Megatron-LM's muon_split_qkv does it
// for queries, keys and values, and leaves gate and up as one matrix. Embeddings, the output layer, norms and biases
// are AdamW's.
#pragma once
#include <memory>

#include "optimizer/update_rule.h"

namespace mcpp {

/// For a model of type `dtype`: products of matrices are in that type, of fp16 models in bf16, which has the range.
std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, DType dtype);

/// Pulls the singular values of `matrix` [out, in], fp32 (fp64), towards 1: about 0.7 to 1.2 after five steps, for
/// those above a few thousandths of its Frobenius norm. Steps are of the iteration of Newton and Schulz, with Jordan's
/// coefficients. Products are in `type`.
void orthogonalize(Tensor& matrix, i64 steps, DType type);

}  // namespace mcpp
