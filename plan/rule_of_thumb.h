// Rule-of-thumb layout, as a first answer that is easy to verify.
#pragma once
#include "plan/cost/workload.h"

namespace mcpp {

struct RuleOfThumb {
  std::string rule;
  std::string advice;     ///< consequence for this model and world size
  std::string kind = {};  ///< tag of the layouts that follow the advice (LayoutTag::text()); "" if it names none
};

/// Returns the recipe as a list of rules: data parallelism up to about 128 ranks; sharding (ZeRO 3) above a billion
/// parameters; recomputation where activations do not fit; groups (HSDP) above 256 ranks; context, tensor and pipeline
/// parallelism above a thousand ranks, 50 billion parameters or 16 thousand tokens per sample.
std::vector<RuleOfThumb> rule_of_thumb_layout(const Hardware& hardware, const Workload& work, i64 world_size);

}  // namespace mcpp
