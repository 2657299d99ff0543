#include "plan/layout_tags.h"

#include "base/strings.h"

namespace mcpp {
namespace {

std::string_view recompute_text(const Recompute& recompute) {
  using enum Recompute::Granularity;
  if (recompute.granularity == None) return "none";
  if (recompute.granularity == Selective) return "selective";
  return recompute.method == Recompute::Method::Block ? "some layers" : "full";
}

}  // namespace

std::string LayoutTag::text() const {
  return value.empty() ? str(name, " ", number) : str(name, " ", value);
}

std::vector<LayoutTag> layout_tags(const Layout& l, bool has_experts) {
  std::vector<LayoutTag> kinds;
  kinds.reserve(16);
  const auto of_number = [&](std::string_view name, i64 number) { kinds.push_back({name, "", number}); };
  const auto of_value = [&](std::string_view name, std::string_view value) { kinds.push_back({name, value}); };
  of_number("tp", l.tp), of_number("cp", l.cp), of_number("pp", l.pp), of_number("ZeRO", l.zero_stage);
  of_number("micro batch", l.micro_batch_size);
  if (l.cp > 1) of_value("cp", enum_name(l.cp_comm_type));
  if (has_experts) of_number("ep", l.ep);
  if (l.pp > 1) of_value("schedule", enum_name(l.schedule)), of_value("stages", l.stages.empty() ? "even" : "uneven");
  of_value("recompute", recompute_text(l.recompute));
  of_value("activations", enum_name(l.activations_tier));
  if (l.has_secondary_shard()) of_value("weights", "twice");
  if (l.rounding.packed_weights) of_value("weights", "packed");
  if (l.rounding.gradients == GradReduceFormat::Int8) of_value("gradients", "packed");
  if (l.rounding.gradients == GradReduceFormat::Bf16) of_value("gradients", "sent in bf16");
  if (l.rounding.gradients != GradReduceFormat::Full && l.node_ranks > 1) of_value("gradients", "by nodes");
  if (l.rounding.bf16_gradients) of_value("gradients", "bf16");
  return kinds;
}

bool NaturalLess::operator()(const std::string& a, const std::string& b) const {
  const auto name = [](const std::string& kind) { return std::string_view(kind).substr(0, kind.rfind(' ')); };
  if (name(a) != name(b)) return name(a) < name(b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace mcpp
