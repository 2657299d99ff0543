// Attention as functions of an AttentionProblem, and the work items they consist of; each item may run on any thread,
// with scratch memory of its own.
#pragma once
#include "tensor/cpu/attention/attention_problem.h"

namespace mcpp::kernel {

/// All of ops::attention (writes out, lse) and ops::attention_backward (writes dq, dk, dv), for the filled-in problem.
template <class T>
void attention_forward(AttentionProblem<T> p, CpuDevice& device);
template <class T>
void attention_backward(const AttentionProblem<T>& p, CpuDevice& device);

/// Query blocks item % p.parts, .. of key head item / p.parts % kv_heads in batch column item / p.parts / kv_heads.
void attention_forward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
/// What `memory` must have, 64-byte aligned.
template <class T>
i64 attention_forward_bytes(const AttentionProblem<T>& p);

/// Key head item % kv_heads in batch column item / kv_heads, with all query heads that share it. `memory`: as
/// attention_backward_bytes() of attention_memory.h.
void attention_backward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);

/// Without tiles, for a few queries: query head item % heads in batch column item / heads. No dropout.
void attention_decode_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
template <class T>
i64 attention_decode_bytes(const AttentionProblem<T>& p);

}  // namespace mcpp::kernel
