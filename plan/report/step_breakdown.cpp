#include "plan/report/step_breakdown.h"

namespace mcpp {

std::vector<StepPart> pass_parts(const PassTime& t) {
  return {{"products", "matrix products", "#3f74c4", t.products},
          {"attention", "attention", "#6a9be0", t.attention},
          {"elementwise", "elementwise", "#a5c3ee", t.elementwise},
          {"tensor_parallel", "tensor-parallel communication", "#e08a3c", t.tensor_parallel},
          {"context_parallel", "context-parallel communication", "#c8551b", t.context_parallel},
          {"expert_parallel", "tokens to experts and back", "#b83274", t.expert_parallel},
          {"zero_in_microbatches", "ZeRO in each microbatch", "#8246c4", t.data_parallel},
          {"elsewhere", "waits for what is elsewhere", "#7d5a44", t.offloaded}};
}

std::vector<StepPart> step_parts(const StepTime& t) {
  std::vector<StepPart> parts = pass_parts(t.work);
  parts.insert(parts.end(), {{"turns", "waits for a core", "#b9bec6", t.turns},
                             {"bubble", "waits in the pipeline", "#d5d9df", t.bubble},
                             {"messages", "messages between stages", "#14805e", t.messages},
                             {"gradients_and_weights", "gradients and weights, not hidden", "#af80da", t.data_parallel},
                             {"optimizer", "optimizer", "#3f9c74", t.optimizer},
                             {"data", "data", "#80700f", t.data}});
  return parts;
}

}  // namespace mcpp
