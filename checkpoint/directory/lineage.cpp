#include "checkpoint/directory/lineage.h"

#include <algorithm>

#include "base/strings.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/retention.h"

namespace mcpp {

Lineage Lineage::parse(const std::string& text) {
  Lineage lineage;
  for (const std::string& part : split(text, ',')) {
    const std::size_t at = part.find('@');
    if (at == std::string::npos) return {};
    const auto id = parse_number<i64>(part.substr(0, at)), iteration = parse_number<i64>(part.substr(at + 1));
    if (!id || !iteration) return {};
    lineage.branches.push_back({.id = *id, .iteration = *iteration});
  }
  return lineage;
}

std::string Lineage::text() const {
  std::vector<std::string> parts;
  for (const Branch& branch : branches) parts.push_back(str(branch.id, "@", branch.iteration));
  return join(parts, ",");
}

bool Lineage::precedes(i64 iteration, const Lineage& other, i64 other_iteration) const {
  if (branches.size() > other.branches.size()) return false;
  if (!std::equal(branches.begin(), branches.end(), other.branches.begin())) return false;
  const bool is_same = branches.size() == other.branches.size();
  return iteration <= (is_same ? other_iteration : other.branches[branches.size()].iteration);
}

Lineage continue_lineage(const Lineage& lineage, i64 iteration, const Path& directory) {
  const std::vector<Path> checkpoints = checkpoints_in(directory);
  if (checkpoints.empty() || *iteration_of(checkpoints.back().filename().string()) <= iteration) return lineage;
  Lineage continued = lineage;
  i64 last_id = 0;
  const auto count_ids = [&](const Lineage& known) {
    for (const Lineage::Branch& branch : known.branches) last_id = std::max(last_id, branch.id);
  };
  count_ids(lineage);
  for (const Path& checkpoint : checkpoints) count_ids(lineage_of(checkpoint));
  continued.branches.push_back({.id = last_id + 1, .iteration = iteration});
  return continued;
}

Lineage lineage_of(const Path& checkpoint) {
  return Lineage::parse(extra_value(checkpoint, kLineageName));
}

}  // namespace mcpp
