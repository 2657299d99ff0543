#include "megatron_cpp/setup/param_group_check.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/setup/layer_names.h"
#include "model/meta_model.h"
#include "optimizer/param_group.h"

namespace mcpp {
namespace {

/// Parameters that take a table of optimizer.param_group.
struct GroupMembers {
  i64 tensors = 0, elements = 0;
  i64 taken = 0;  ///< tensors that match too, but take an earlier table
  bool has_adam = false;
};

std::vector<GroupMembers> find_members(const Config& config) {
  const OptimizerConfig& optimizer = config.optimizer;
  std::vector<GroupMembers> members(optimizer.param_group.size());
  visit_meta_params(config.model, [&](const Param& param) {
    bool is_taken = false;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!optimizer.param_group[i].matches(param.name)) continue;
      if (is_taken) {
        ++members[i].taken;
        continue;
      }
      is_taken = true;
      ++members[i].tensors;
      members[i].elements += numel(param.box.global);
      if (group_of(param, optimizer).rule == OptimizerKind::Adam) members[i].has_adam = true;
    }
  });
  return members;
}

/// Returns the ending of a message on patterns that match nothing: the most similar name, or all names.
std::string similar_names(const ModelConfig& model, const std::vector<std::string>& patterns) {
  std::set<std::string> names;
  visit_meta_params(model, [&](const Param& param) { names.insert(name_of_all_layers(param.name)); });
  const std::vector<std::string> candidates(names.begin(), names.end());
  std::set<std::string> nearest;
  for (const std::string& pattern : patterns)
    if (std::string name = nearest_name(name_of_all_layers(pattern), candidates); !name.empty())
      nearest.insert(std::move(name));
  if (nearest.empty()) return str("the model has ", join(candidates, ", "));
  return str("did you mean ", join(std::vector(nearest.begin(), nearest.end()), " or "), "?");
}

}  // namespace

void check_param_groups(const Config& config) {
  const std::vector<ParamGroupConfig>& groups = config.optimizer.param_group;
  if (groups.empty()) return;
  const std::vector<GroupMembers> members = find_members(config);
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto add = [&](const auto&... text) {
      problems.push_back(str("optimizer.param_group: table ", i + 1, ": ", text...));
    };
    const std::vector<std::string>& patterns = groups[i].match.values();
    if (members[i].tensors == 0 && members[i].taken > 0) {
      add("match: the ", members[i].taken, " tensors that match ", quoted_patterns(patterns),
          " match an earlier table, and the first match applies; move this table up, or remove it");
    } else if (members[i].tensors == 0) {
      add("match: no tensor matches ", quoted_patterns(patterns), "; ", similar_names(config.model, patterns));
    } else if (groups[i].sets_adam() && !members[i].has_adam) {
      add("adam_beta1, adam_beta2, adam_eps: optimizer \"", enum_name(config.optimizer.optimizer),
          "\" does not update these tensors with adam; remove them");
    }
  }
  check_input(problems.empty(), join(problems, "\n  "));
}

std::string describe_param_groups(const Config& config) {
  const std::vector<ParamGroupConfig>& groups = config.optimizer.param_group;
  if (groups.empty()) return "";
  const std::vector<GroupMembers> members = find_members(config);
  std::string text = "parameter groups:\n";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const ParamGroupConfig& group = groups[i];
    text += str("  ", join(group.match.values(), ", "), ": ", members[i].tensors,
                members[i].tensors == 1 ? " tensor, " : " tensors, ",
                human_count(static_cast<double>(members[i].elements)), " parameters, learning rate x ", group.lr_mult);
    if (group.wd_mult) text += str(", weight decay x ", *group.wd_mult);
    if (group.adam_beta1) text += str(", adam_beta1 ", *group.adam_beta1);
    if (group.adam_beta2) text += str(", adam_beta2 ", *group.adam_beta2);
    if (group.adam_eps) text += str(", adam_eps ", *group.adam_eps);
    text += "\n";
  }
  return text;
}

}  // namespace mcpp
