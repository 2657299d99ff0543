// Records of the ops and messages of a rank on the meta device, which are those that a real device would execute.
// Estimates of time, traffic and FLOPs are computed from these records (model/block_trace.h).
#pragma once
#include <string>
#include <vector>

#include "tensor/gemm_recipe.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Shape of `batch` GEMMs [m, k] x [k, n] -> [m, n].
struct MatmulShape {
  i64 m = 1, n = 1, k = 1;
  i64 batch = 1;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(batch);
  }
  bool operator==(const MatmulShape&) const = default;
};

/// Queries and keys of one call of core attention. The keys may be a subset of the keys to which the queries attend.
struct AttentionShape {
  i64 queries = 0, keys = 0, batch = 0;  ///< positions of a sample, and samples
  i64 query_heads = 0, key_heads = 0;
  i64 key_dim = 0, value_dim = 0;  ///< widths of a head of queries and keys, and of values
  i64 window = 0;                  ///< 0: none
  i64 chunk = 0;                   ///< see AttentionOptions; 0: none
  /// Number of (query, key) pairs in which the query attends to the key, for one head in one sample. As is usual in
  /// FLOP counts, pairs with equal positions count half.
  double pairs = 0;
  double share = 0;  ///< ratio of `pairs` to the pairs of the same queries with all keys of the sample
  bool has_dropout = false;

  /// Returns the number of elements of queries, keys and values at the positions of the queries.
  double elements() const {
    return static_cast<double>(queries * batch * (query_heads * key_dim + key_heads * (key_dim + value_dim)));
  }
  /// Returns the number of pairs of all heads and samples.
  double all_pairs() const { return pairs * static_cast<double>(batch * query_heads); }
};

/// Kinds of ops with different costs. Ops of most kinds take time per element; those of kind Memory move bytes.
enum class OpKind : u8 {
  Matmul,
  Attention,
  AttentionMerge,  ///< merge of attention over disjoint keys
  Norm,
  Residual,  ///< addition of a branch to the residual stream, with its bias and dropout
  Dropout,   ///< dropout of a gradient of Residual
  Rotary,
  Activation,
  Loss,      ///< cross entropy over logits
  Bias,      ///< addition of a bias; backward: its gradient
  Quantize,  ///< largest magnitude of an operand of a low-precision GEMM, or rounding without a GEMM
  Memory,    ///< everything else
};

/// Record of one op. An op that does not describe itself is recorded as Memory that reads and writes one tensor
/// (on_device()).
struct OpRecord {
  OpKind kind = OpKind::Memory;
  bool is_backward = false;         ///< computes a gradient
  bool is_weight_gradient = false;  ///< the result is added to the main gradient of a parameter
  DType dtype = DType::F32;         ///< type of the inputs
  double elements = 0;              ///< processed elements, for kinds with a time per element
  double bytes = 0;                 ///< bytes read and written, for AttentionMerge and Memory
  double flops = 0;                 ///< for Matmul, Attention, and other ops that use matrix units
  MatmulShape matmul = {};
  GemmRecipe recipe = GemmRecipe::Bf16;  ///< Matmul: rounding of the operands
  AttentionShape attention = {};
  const void* weight_data = nullptr;  ///< Matmul: second operand, or result if is_weight_gradient
  std::string weight = {};  ///< Matmul: name of the parameter with this data, set by BlockTraces; may be empty
};

enum class MessageKind : u8 { AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send };

/// Message sent, or collective of a group of ranks, or several collectives that are in flight together.
struct MessageRecord {
  MessageKind kind = MessageKind::Send;
  std::string group;  ///< name of the group (make_meta_communicator())
  /// Bytes of the full vector. For AllToAll, the larger of the bytes sent and the bytes received by the rank.
  double bytes = 0;
  /// Ops of the trace that are queued while the message is in flight: [first_op, end_op).
  std::size_t first_op = 0, end_op = 0;
  int in_flight = 0;    ///< collectives of the message that have started and are not yet waited for
  bool yields = false;  ///< another pass may run while the message is in flight
};

struct OpTrace {
  std::vector<OpRecord> ops;
  std::vector<MessageRecord> messages;

  /// Records that another pass may run now.
  void yield() {
    for (MessageRecord& message : messages) message.yields |= message.in_flight > 0;
  }
};

/// Returns the trace to which the device of `t` records, or null if it is not a meta device that records.
inline OpTrace* trace_of(const Tensor& t) {
  Device& device = t.device();
  return device.type() == DeviceType::Meta ? static_cast<MetaDevice&>(device).trace() : nullptr;
}

}  // namespace mcpp
