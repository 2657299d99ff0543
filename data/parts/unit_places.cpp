#include "data/parts/unit_places.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace mcpp {

UnitPlaces::UnitPlaces(const PartsFolder& folder, const std::vector<WorkUnit>& units)
    : units_(units), append_eod_(folder.options().append_eod), waiting_(units.size()) {
  for (const std::string& key : folder.keys())
    keys_.push_back({.prefix = folder.options().prefix_of(key), .end = 0, .open = {}});
}

void UnitPlaces::add(std::size_t unit, PartNote note) {
  {
    const std::lock_guard lock(mutex_);
    waiting_[unit] = std::move(note);
    while (places_.size() < units_.size() && waiting_[places_.size()])
      place_next(*std::exchange(waiting_[places_.size()], std::nullopt));
  }
  changed_.notify_all();
}

void UnitPlaces::place_next(const PartNote& note) {
  const WorkUnit& unit = units_[places_.size()];
  std::vector<Place> places;
  for (std::size_t k = 0; k < keys_.size(); ++k) places.push_back(next_place(keys_[k], unit, note.keys[k]));
  check_input(note.places.empty() || note.places == places, unit.identity(),
              ": lies elsewhere than where it belongs; remove the folder of parts to begin anew");
  places_.push_back(std::move(places));
}

Place UnitPlaces::next_place(Key& key, const WorkUnit& unit, const PartOfKey& part) const {
  MCPP_CHECK(part.continues || !key.open, unit.identity(), " does not go on with the document before");
  const i64 size = token_bytes(part.token_type());
  Place place{.begin = key.end, .end = key.end + part.info.tokens * size, .head_document = {}};
  if (part.continues) key.open = key.open.value_or(0) + part.head_tokens;
  if (part.head_ends) {
    i64 tokens = *std::exchange(key.open, std::nullopt);
    if (tokens > 0 && append_eod_) {
      ++tokens;
      place.end += size;
    }
    check_input(tokens <= std::numeric_limits<i32>::max(), key.prefix,
                ": a document has more than 2147483647 tokens, which the .idx format cannot hold; cut the text into "
                "several documents");
    place.head_document = tokens;
  }
  if (part.is_open && (part.head_ends || !part.continues)) key.open = part.open_tokens;
  key.end = place.end;
  return place;
}

std::optional<std::vector<Place>> UnitPlaces::wait_for(std::size_t unit, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [&] { return unit < places_.size(); })) return std::nullopt;
  return places_[unit];
}

}  // namespace mcpp
