// Work items of ops::max_attention_logits on the CPU.
#pragma once
#include "tensor/cpu/attention/attention_problem.h"

namespace mcpp::kernel {

/// Writes the largest dot product (or output of cap_tile) of each query head that shares a key head, over every
/// p.parts-th query block, as attention_forward_item() divides them, to largest[head]; -infinity if no query sees
/// a key.
void attention_logits_item(const AttentionProblem<float>& p, i64 item, std::byte* memory, float* largest);
void attention_logits_item(const AttentionProblem<double>& p, i64 item, std::byte* memory, double* largest);
void attention_logits_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory, float* largest);
void attention_logits_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory, float* largest);
/// Returns the required size of `memory`, which must be 64-byte aligned.
template <class T>
i64 attention_logits_bytes(const AttentionProblem<T>& p);

}  // namespace mcpp::kernel
