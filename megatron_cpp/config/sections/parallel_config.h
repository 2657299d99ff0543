// Layout of a run over ranks. It does not change what is trained, except for keys whose help says so. Names are
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
  void set_grad_wire(GradReduceFormat wire) {
    zero_quantized_gradients = wire == GradReduceFormat::Int8;
    grad_reduce_dtype = wire == GradReduceFormat::Bf16 ? GradDType::Bf16 : GradDType::Fp32;
  }

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    model_fields(self, visit);
    data_fields(self, visit);
    visit("distributed_backend", self.distributed_backend,
          "what carries tensors of GPUs: nccl, or mpi through host memory; auto = nccl where no two ranks share a GPU");
    visit("distributed_timeout_minutes", self.distributed_timeout_minutes,
          "the longest that a rank waits for others before the run ends as hanging (exit code 75)", greater_than(0));
    visit("step_timeout_minutes", self.step_timeout_minutes,
          "the same in a training step that follows another, or five times the longest step if that is more",
          greater_than(0));
  }

 private:
  template <class Self, class Visitor>
  static void model_fields(Self& self, Visitor& visit) {
    visit("tensor_model_parallel_size", self.tensor_model_parallel_size, "ranks that share each layer",
          between(1, 4096));
    visit("sequence_parallel", self.sequence_parallel,
          "these ranks also share the sequence between layers: less memory, the same communication");
    visit("context_parallel_size", self.context_parallel_size,
          "ranks that share each sample: every one has some positions of it", between(1, 4096));
    visit(
        "cp_comm_type", self.cp_comm_type,
        "how attention meets the keys of these ranks: p2p = a ring, all_gather, a2a = heads in exchange for positions, "
        "a2a+p2p = among neighbours, with a ring between them");
    visit("hierarchical_context_parallel_sizes", self.hierarchical_context_parallel_sizes,
          "with a2a+p2p: ranks that exchange heads (of one machine), and members of the ring", between(1, 4096));
    visit("expert_model_parallel_size", self.expert_model_parallel_size,
          "ranks that the experts of a layer are dealt out to, of those that share its other parts or its batch",
          between(1, 4096));
    visit("expert_tensor_parallel_size", self.expert_tensor_parallel_size,
          "ranks that share each expert; 0 = tensor_model_parallel_size", between(0, 4096));
    visit("moe_token_dispatcher_type", self.moe_token_dispatcher_type,
          "how tokens come to their experts: alltoall = to the ranks that have them, allgather = all to all");
    visit("pipeline_model_parallel_size", self.pipeline_model_parallel_size, "ranks that the layers are dealt out to",
          between(1, 4096));
    visit("num_virtual_stages_per_pipeline_rank", self.num_virtual_stages_per_pipeline_rank,
          str("parts of the model on each pipeline rank: ", describe_min_chunks()), between(1, 4096));
    visit("pipeline_schedule", self.pipeline_schedule, "order of forward and backward passes over the pipeline");
    visit("decoder_first_pipeline_num_layers", self.decoder_first_pipeline_num_layers,
          "layers on the first pipeline rank; 0 = as many as on the others", at_least(0));
    visit("decoder_last_pipeline_num_layers", self.decoder_last_pipeline_num_layers,
          "layers on the last pipeline rank; 0 = as many as on the others", at_least(0));
    visit("pipeline_model_parallel_layout", self.pipeline_model_parallel_layout,
          "stages spelt out, such as \"Et*3|t*4|t*3L\": E embedding, t layer, L output; instead of the two above");
  }
  template <class Self, class Visitor>
  static void data_fields(Self& self, Visitor& visit) {
    visit("zero_stage", self.zero_stage,
          "what data-parallel ranks share: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights",
          between(0, 3));
    visit("num_distributed_optimizer_instances", self.num_distributed_optimizer_instances,
          "groups of data-parallel ranks that each hold all that zero_stage shares (hybrid sharding)", at_least(1));
    visit(
        "zero_hpz_partition_size", self.zero_hpz_partition_size,
        "neighbouring data-parallel ranks of one machine: with zero_stage 3 they keep a second copy of the weights "
        "among themselves, to gather them from; with zero_quantized_gradients or grad_reduce_dtype bf16 they first sum "
        "gradients among themselves; 1 = neither",
        between(1, 4096));
    visit("zero_quantized_weights", self.zero_quantized_weights,
          "weights travel in a byte each; all ranks compute with those that arrive, which changes what is trained a "
          "little");
    visit("zero_quantized_gradients", self.zero_quantized_gradients,
          "gradients travel in a byte each, and are summed in full; changes what is trained a little");
    visit(
        "grad_reduce_dtype", self.grad_reduce_dtype,
        "with zero_stage 1, 2 and 3: what gradients are rounded to, once, for their way between ranks, which sum them "
        "in fp32; changes what is trained a little");
    visit("power_sgd_rank", self.power_sgd_rank,
          "with zero_stage 0 or 1: gradients of linear layers are summed by two factors of so many columns (PowerSGD); "
          "what they leave out is added to the next step's; 0 = in full",
          between(0, 1024));
    visit("power_sgd_start_iter", self.power_sgd_start_iter,
          "with power_sgd_rank: iterations at the start of the training whose gradients are summed in full",
          at_least(0));
    visit("ddp_bucket_size", self.ddp_bucket_size, "gradients that are reduced together; 0 = all", at_least(0));
    visit("overlap_grad_reduce", self.overlap_grad_reduce, "reduce gradients while backward still runs");
    visit("overlap_param_gather", self.overlap_param_gather, "gather weights before they are needed");
  }
};

}  // namespace mcpp
