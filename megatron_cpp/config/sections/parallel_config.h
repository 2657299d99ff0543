// Layout of a run over ranks. It does not change what is trained, except for keys whose help states it. Names are
// Megatron-LM's where it has one.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/strings.h"
#include "optimizer/config.h"
#include "parallel/cp/comm_type.h"
#include "parallel/dp/buckets/grad_reduce_format.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {

/// Library that transfers the tensors of GPUs between ranks.
enum class DistributedBackend : u8 { Auto, Nccl, Mpi };
template <>
struct EnumNames<DistributedBackend> {
  static constexpr std::array<std::string_view, 3> value{"auto", "nccl", "mpi"};
};

struct ParallelConfig {
  i64 tensor_model_parallel_size = 1;
  bool sequence_parallel = false;
  i64 context_parallel_size = 1;
  CpCommType cp_comm_type = CpCommType::P2p;
  std::vector<i64> hierarchical_context_parallel_sizes;
  i64 expert_model_parallel_size = 1;
  i64 expert_tensor_parallel_size = 0;
  TokenDispatcherType moe_token_dispatcher_type = TokenDispatcherType::AllToAll;
  i64 pipeline_model_parallel_size = 1;
  i64 num_virtual_stages_per_pipeline_rank = 1;
  ScheduleKind pipeline_schedule = ScheduleKind::OneFOneB;
  i64 decoder_first_pipeline_num_layers = 0;
  i64 decoder_last_pipeline_num_layers = 0;
  std::string pipeline_model_parallel_layout;
  i64 zero_stage = 0;
  i64 num_distributed_optimizer_instances = 1;
  i64 zero_hpz_partition_size = 1;
  bool zero_quantized_weights = false;
  bool zero_quantized_gradients = false;
  GradDType grad_reduce_dtype = GradDType::Fp32;
  i64 power_sgd_rank = 0;
  i64 power_sgd_start_iter = 0;
  i64 ddp_bucket_size = 40'000'000;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  DistributedBackend distributed_backend = DistributedBackend::Auto;
  double distributed_timeout_minutes = 10;
  double step_timeout_minutes = 1;

  /// Combines zero_quantized_gradients and grad_reduce_dtype, which exclude each other.
  GradReduceFormat grad_reduce_format() const {
    if (zero_quantized_gradients) return GradReduceFormat::Int8;
    return grad_reduce_dtype == GradDType::Bf16 ? GradReduceFormat::Bf16 : GradReduceFormat::Full;
  }
  void set_grad_reduce_format(GradReduceFormat format) {
    zero_quantized_gradients = format == GradReduceFormat::Int8;
    grad_reduce_dtype = format == GradReduceFormat::Bf16 ? GradDType::Bf16 : GradDType::Fp32;
  }

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    model_fields(self, visit);
    data_fields(self, visit);
    visit("distributed_backend", self.distributed_backend,
          "library that transfers tensors of GPUs: nccl, or mpi through host memory; auto = nccl unless two ranks "
          "share a GPU");
    visit("distributed_timeout_minutes", self.distributed_timeout_minutes,
          "abort with exit code 75 if a rank waits longer than this for other ranks", greater_than(0));
    visit("step_timeout_minutes", self.step_timeout_minutes,
          "limit for every training step but the first; at least five times the longest step so far", greater_than(0));
  }

 private:
  template <class Self, class Visitor>
  static void model_fields(Self& self, Visitor& visit) {
    visit("tensor_model_parallel_size", self.tensor_model_parallel_size, "ranks that share each layer",
          between(1, 4096));
    visit("sequence_parallel", self.sequence_parallel,
          "tensor-parallel ranks also shard the sequence between layers: less memory, the same communication");
    visit("context_parallel_size", self.context_parallel_size,
          "ranks that share each sample, each with some of its positions", between(1, 4096));
    visit("cp_comm_type", self.cp_comm_type,
          "how context-parallel ranks exchange keys and values: p2p = ring, all_gather, a2a = exchange of heads for "
          "positions, a2a+p2p = a2a among neighbors and a ring between them");
    visit("hierarchical_context_parallel_sizes", self.hierarchical_context_parallel_sizes,
          "with a2a+p2p: ranks that exchange heads (on one node), and members of the ring", between(1, 4096));
    visit("expert_model_parallel_size", self.expert_model_parallel_size,
          "ranks that the experts of a layer are distributed over, among those of tensor, context and data parallelism",
          between(1, 4096));
    visit("expert_tensor_parallel_size", self.expert_tensor_parallel_size,
          "ranks that share each expert; 0 = tensor_model_parallel_size", between(0, 4096));
    visit("moe_token_dispatcher_type", self.moe_token_dispatcher_type,
          "how tokens are sent to experts: alltoall = only to the ranks of their experts, allgather = to all ranks");
    visit("pipeline_model_parallel_size", self.pipeline_model_parallel_size,
          "ranks that the layers are distributed over", between(1, 4096));
    visit("num_virtual_stages_per_pipeline_rank", self.num_virtual_stages_per_pipeline_rank,
          str("model chunks on each pipeline rank: ", describe_min_chunks()), between(1, 4096));
    visit("pipeline_schedule", self.pipeline_schedule, "order of forward and backward passes over the pipeline");
    visit("decoder_first_pipeline_num_layers", self.decoder_first_pipeline_num_layers,
          "layers on the first pipeline rank; 0 = as many as on the others", at_least(0));
    visit("decoder_last_pipeline_num_layers", self.decoder_last_pipeline_num_layers,
          "layers on the last pipeline rank; 0 = as many as on the others", at_least(0));
    visit("pipeline_model_parallel_layout", self.pipeline_model_parallel_layout,
          "explicit stages, such as \"Et*3|t*4|t*3L\": E embedding, t layer, L output; instead of the number of layers "
          "on the first and last rank");
  }
  template <class Self, class Visitor>
  static void data_fields(Self& self, Visitor& visit) {
    visit("zero_stage", self.zero_stage,
          "what is sharded across data-parallel ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights",
          between(0, 3));
    visit("num_distributed_optimizer_instances", self.num_distributed_optimizer_instances,
          "groups of data-parallel ranks that each hold all that zero_stage shards (hybrid sharding)", at_least(1));
    visit("zero_hpz_partition_size", self.zero_hpz_partition_size,
          "size of groups of neighboring ranks inside a node: with zero_stage 3, they hold a secondary copy of the "
          "weights to gather from (hpZ); with zero_quantized_gradients or grad_reduce_dtype bf16, gradients are first "
          "summed within them; 1 = no groups",
          between(1, 4096));
    visit("zero_quantized_weights", self.zero_quantized_weights,
          "send weights as int8; all ranks compute with the quantized weights, so training is not bitwise identical");
    visit("zero_quantized_gradients", self.zero_quantized_gradients,
          "send gradients as int8 (accumulated in fp32); not bitwise identical");
    visit("grad_reduce_dtype", self.grad_reduce_dtype,
          "with zero_stage 1, 2 and 3: type that gradients are rounded to, once, for communication; they are "
          "accumulated in fp32. bf16 is not bitwise identical");
    visit("power_sgd_rank", self.power_sgd_rank,
          "with zero_stage 0 or 1: rank of the factors that approximate the summed gradients of linear layers "
          "(PowerSGD); the error is added to the next step's gradient; 0 = exact sums",
          between(0, 1024));
    visit("power_sgd_start_iter", self.power_sgd_start_iter,
          "with power_sgd_rank: number of initial iterations with exact sums", at_least(0));
    visit("ddp_bucket_size", self.ddp_bucket_size, "gradient elements that are reduced together; 0 = all", at_least(0));
    visit("overlap_grad_reduce", self.overlap_grad_reduce, "reduce gradients while the backward pass is running");
    visit("overlap_param_gather", self.overlap_param_gather, "gather weights before they are needed");
  }
};

}  // namespace mcpp
