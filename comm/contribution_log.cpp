#include "comm/contribution_log.h"

#include <utility>

#include "base/strings.h"
#include "tensor/checksum.h"

namespace mcpp {
namespace {

/// Groups of one name are disjoint, so that their first ranks tell them apart.
std::string name_of_group(const std::string& group, std::span<const int> ranks) {
  return ranks.size() > 1 ? str(group, " of rank ", ranks.front()) : group;
}

}  // namespace

void ContributionLog::start() {
  is_recording_ = true;
  counts_.clear();
  contributions_.clear();
}

std::vector<Contribution> ContributionLog::stop() {
  is_recording_ = false;
  return std::exchange(contributions_, {});
}

void ContributionLog::add(const std::string& operation, std::optional<std::string> checksum) {
  contributions_.push_back({str(operation, " #", ++counts_[operation]), std::move(checksum)});
}

void ContributionLog::add_collective(const char* operation, const std::string& group, std::span<const int> ranks,
                                     const Tensor* data) {
  if (!is_recording_ || ranks.size() <= 1) return;
  add(str(name_of_group(group, ranks), ", ", operation), data ? std::optional(checksum_of(*data)) : std::nullopt);
}

void ContributionLog::add_collective(const char* operation, const std::string& group, std::span<const int> ranks,
                                     const Tensor& data, std::span<const Part> parts) {
  if (!is_recording_ || ranks.size() <= 1) return;
  std::string checksums;
  for (const Part& part : parts) checksums += checksum_of(data.flat(part.first, part.count));
  add(str(name_of_group(group, ranks), ", ", operation), std::move(checksums));
}

void ContributionLog::add_message(const std::string& group, std::span<const int> ranks, int from, int to,
                                  const Tensor* data) {
  if (!is_recording_ || ranks.size() <= 1) return;
  const auto rank_of = [&](int member) { return ranks[static_cast<std::size_t>(member)]; };
  add(str(name_of_group(group, ranks), ", message from rank ", rank_of(from), " to rank ", rank_of(to)),
      data ? std::optional(checksum_of(*data)) : std::nullopt);
}

}  // namespace mcpp
