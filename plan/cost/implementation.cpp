#include "plan/cost/implementation.h"

#include "base/strings.h"
#include "parallel/pp/schedule_kind.h"

namespace mcpp {

KernelTraits kernel_traits(Implementation implementation) {
  KernelTraits p;
  if (implementation == Implementation::MegatronCpp) return p;
  p.name = enum_name(implementation);
  // Gradients are cleared and scaled in fp32, the cross entropy is one kernel per pass, and residual additions are
  // kernels of their own. The collectives of a linear layer overlap with its GEMMs in backward, as in this program.
  p.norm = {2, 3};
  p.residual = {3, 3};
  p.heads = {4, 4};
  p.loss = 5;
  p.gradient_passes = 3;
  p.overlaps_data_parallel = false;
  return p;
}

std::vector<std::string> unpredictable_settings(Implementation implementation, const Workload& work) {
  std::vector<std::string> settings;
  if (implementation == Implementation::MegatronCpp) return settings;
  if (!work.fp8.modules.empty())
    settings.emplace_back("training.low_precision: Megatron Core has one recipe for all layers, training.fp8_recipe");
  if (work.ema_interval > 0) settings.emplace_back("optimizer.ema_decay: Megatron Core does not average weights");
  if (work.base.formats.power_sgd_rank > 0)
    settings.emplace_back("parallel.power_sgd_rank: Megatron Core does not factorize gradients");
  if (work.base.formats.quantized_weights)
    settings.emplace_back("parallel.zero_quantized_weights: Megatron Core does not send weights in int8");
  if (work.base.formats.quantized_gradients)
    settings.emplace_back("parallel.zero_quantized_gradients: Megatron Core does not send gradients in int8");
  return settings;
}

std::vector<std::string> unpredictable_settings(Implementation implementation, const Layout& layout) {
  std::vector<std::string> settings;
  if (implementation == Implementation::MegatronCpp) return settings;
  if (layout.schedule != ScheduleKind::OneFOneB && layout.schedule != ScheduleKind::Interleaved)
    settings.push_back(str("parallel.pipeline_schedule = \"", enum_name(layout.schedule),
                           "\": Megatron Core has 1f1b and interleaved"));
  if (layout.zero_stage >= 2)
    settings.push_back(str("parallel.zero_stage = ", layout.zero_stage,
                           ": is predicted for Megatron Core's distributed optimizer only, zero_stage 0 and 1"));
  if (layout.dispatcher == TokenDispatcherType::Hierarchical)
    settings.emplace_back("parallel.moe_token_dispatcher_type = \"hierarchical\": is predicted for megatron_cpp only");
  if (layout.overlap_moe_expert_parallel_comm)
    settings.emplace_back(
        "parallel.overlap_moe_expert_parallel_comm: is predicted for Megatron Core without overlap only");
  if (layout.uses(OffloadTier::Host) || layout.uses(OffloadTier::File))
    settings.emplace_back(
        "optimizer.offload, optimizer.offload_params, training.offload_activations: are predicted for megatron_cpp "
        "only");
  return settings;
}

}  // namespace mcpp
