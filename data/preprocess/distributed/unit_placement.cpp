#include "data/preprocess/distributed/unit_placement.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace mcpp {

UnitPlacement::UnitPlacement(const PartsFolder& folder, const std::vector<WorkUnit>& units)
    : units_(units), append_eod_(folder.options().append_eod), pending_metadata_(units.size()) {
  for (const std::string& key : folder.keys())
    keys_.push_back({.prefix = folder.options().dataset_prefix(key), .end = 0, .open = {}});
}

void UnitPlacement::add(std::size_t unit, PartMetadata metadata) {
  {
    const std::lock_guard lock(mutex_);
    pending_metadata_[unit] = std::move(metadata);
    while (output_ranges_.size() < units_.size() && pending_metadata_[output_ranges_.size()])
      assign_next_range(*std::exchange(pending_metadata_[output_ranges_.size()], std::nullopt));
  }
  changed_.notify_all();
}

void UnitPlacement::assign_next_range(const PartMetadata& metadata) {
  const WorkUnit& unit = units_[output_ranges_.size()];
  std::vector<OutputRange> output_ranges;
  for (std::size_t k = 0; k < keys_.size(); ++k)
    output_ranges.push_back(next_output_range(keys_[k], unit, metadata.keys[k]));
  check_input(metadata.output_ranges.empty() || metadata.output_ranges == output_ranges, unit.identity(),
              ": lies elsewhere than where it belongs; remove the folder of parts to begin anew");
  output_ranges_.push_back(std::move(output_ranges));
}

OutputRange UnitPlacement::next_output_range(Key& key, const WorkUnit& unit, const KeyPart& part) const {
  MCPP_CHECK(part.continues || !key.open, unit.identity(), " does not go on with the document before");
  const i64 size = token_bytes(part.token_type());
  OutputRange output_range{.begin = key.end, .end = key.end + part.info.tokens * size, .head_document = {}};
  if (part.continues) key.open = key.open.value_or(0) + part.head_tokens;
  if (part.head_ends) {
    i64 tokens = *std::exchange(key.open, std::nullopt);
    if (tokens > 0 && append_eod_) {
      ++tokens;
      output_range.end += size;
    }
    check_input(tokens <= std::numeric_limits<i32>::max(), key.prefix,
                ": a document has more than 2147483647 tokens, which the .idx format cannot hold; cut the text into "
                "several documents");
    output_range.head_document = tokens;
  }
  if (part.is_open && (part.head_ends || !part.continues)) key.open = part.open_tokens;
  key.end = output_range.end;
  return output_range;
}

std::optional<std::vector<OutputRange>> UnitPlacement::wait_for(std::size_t unit, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return unit < output_ranges_.size(); })) return std::nullopt;
  return output_ranges_[unit];
}

}  // namespace mcpp
