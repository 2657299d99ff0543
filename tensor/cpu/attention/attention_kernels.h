// Attention as functions of an AttentionProblem, and their work items. Each item may run on any thread, with its own
// scratch memory.
#pragma once
#include "tensor/cpu/attention/attention_problem.h"

namespace mcpp::kernel {

/// Computes ops::attention (writes out, lse) and ops::attention_backward (writes dq, dk, dv) for the filled-in problem.
template <class T>
void attention_forward(AttentionProblem<T> p, CpuDevice& device);
template <class T>
void attention_backward(const AttentionProblem<T>& p, CpuDevice& device);

/// Processes query blocks item % p.parts, + p.parts, ... of key head item / p.parts % kv_heads in batch column item /
/// p.parts / kv_heads.
void attention_forward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
/// Returns the required size of `memory`, which is 64-byte aligned.
template <class T>
i64 attention_forward_bytes(const AttentionProblem<T>& p);

/// Processes key head item % kv_heads in batch column item / kv_heads, with all query heads that share it. Size of
/// `memory`: attention_backward_bytes() of attention_memory.h.
void attention_backward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);

/// Processes, for a few queries and without tiles, query head item % heads in batch column item / heads. No dropout.
void attention_decode_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
template <class T>
i64 attention_decode_bytes(const AttentionProblem<T>& p);

}  // namespace mcpp::kernel
