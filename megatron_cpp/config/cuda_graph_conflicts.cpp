#include "megatron_cpp/config/cuda_graph_conflicts.h"

#include "base/strings.h"

namespace mcpp {
namespace {

/// Collects errors of the form "device.cuda_graph_impl: <key> is <value>, but <reason>; <remedy>, or remove
/// cuda_graph_impl".
class Conflicts {
 public:
  explicit Conflicts(std::vector<std::string>& errors) : errors_(errors) {}

  template <class Value>
  void add_if(bool is_violated, const char* key, const Value& value, const char* reason, const char* remedy) {
    if (is_violated)
      errors_.push_back(str("device.cuda_graph_impl: ", key, " is ", value, ", but ", reason, "; ", remedy,
                            ", or remove cuda_graph_impl"));
  }

 private:
  std::vector<std::string>& errors_;
};

void add_parallel_conflicts(const ParallelConfig& p, Conflicts& conflicts) {
  constexpr const char *kCollectives = "collectives within a pass are not recorded", *kSetToOne = "set it to 1";
  conflicts.add_if(p.tp > 1, "parallel.tensor_model_parallel_size", p.tp, kCollectives, kSetToOne);
  conflicts.add_if(p.cp > 1, "parallel.context_parallel_size", p.cp, kCollectives, kSetToOne);
  conflicts.add_if(p.pp > 1, "parallel.pipeline_model_parallel_size", p.pp,
                   "forward and backward of a microbatch are one graph, which a pipeline separates", kSetToOne);
  conflicts.add_if(p.chunks > 1, "parallel.num_virtual_stages_per_pipeline_rank", p.chunks,
                   "forward and backward of a microbatch are one graph, which several chunks separate", kSetToOne);
  conflicts.add_if(p.zero_stage >= 2, "parallel.zero_stage", p.zero_stage,
                   "stages 2 and 3 reduce gradients or gather weights within a pass", "set it to 0 or 1");
}

/// Padded to their capacity, experts of a rank have the same number of rows in every pass.
void add_expert_conflicts(const Config& config, Conflicts& conflicts) {
  const MoeConfig& moe = config.model.moe;
  if (moe.num_experts == 0) return;
  constexpr const char* kExchange = "the exchange of tokens within a pass is not recorded";
  conflicts.add_if(!moe.pad_expert_input_to_capacity, "model.moe_pad_expert_input_to_capacity", "false",
                   "without padding, the host reads the number of tokens of each expert within a pass",
                   "set it to true with a moe_expert_capacity_factor, above which tokens are dropped, or use a model "
                   "without experts");
  conflicts.add_if(config.parallel.ep > 1, "parallel.expert_model_parallel_size", config.parallel.ep, kExchange,
                   "set it to 1");
  conflicts.add_if(config.parallel.etp > 1, "parallel.expert_tensor_parallel_size", config.parallel.etp, kExchange,
                   "set it to 1");
}

}  // namespace

void cuda_graph_conflicts(const Config& config, std::vector<std::string>& errors) {
  if (config.device.cuda_graph_impl == CudaGraphImpl::None) return;
  Conflicts conflicts(errors);
  const TrainingConfig& t = config.training;
  add_parallel_conflicts(config.parallel, conflicts);
  add_expert_conflicts(config, conflicts);
  conflicts.add_if(t.fp8 != Fp8::None, "training.fp8", enum_name(t.fp8), "passes in low precision are not recorded",
                   "remove it");
  conflicts.add_if(!t.low_precision.empty(), "training.low_precision", "set",
                   "passes in low precision are not recorded", "remove it");
  conflicts.add_if(t.offload_activations != OffloadTier::Device, "training.offload_activations",
                   enum_name(t.offload_activations), "copies to other memory within a pass are not recorded",
                   "remove it");
  conflicts.add_if(config.device.gemm_tuning == GemmTuning::Time, "device.gemm_tuning",
                   enum_name(config.device.gemm_tuning),
                   "ranks may agree on other algorithms after passes have been recorded",
                   "time GEMMs in a run without graphs, and then use its gemm_tuning_file");
}

}  // namespace mcpp
