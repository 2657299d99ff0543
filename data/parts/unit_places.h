// Where the tokens of units belong.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "data/parts/parts_folder.h"

namespace mcpp {

/// The place of a unit is known when the sizes of all before it are. Every process hears of all units, and gives them
/// the same places.
class UnitPlaces {
 public:
  /// `units` outlive it.
  UnitPlaces(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// The note of a unit, each once, in any order. BadInput for a document that is too long, and for a part that lies
  /// elsewhere already.
  void add(std::size_t unit, PartNote note);
  /// [key] of a unit, when they are known; nothing when it is to stop before.
  std::optional<std::vector<Place>> wait_for(std::size_t unit, const std::stop_token& stop);

 private:
  struct Key {
    std::string prefix;
    i64 end = 0;              // bytes so far
    std::optional<i64> open;  // tokens of the document that goes on in the next unit
  };
  Place next_place(Key& key, const WorkUnit& unit, const PartOfKey& part) const;
  void place_next(const PartNote& note);

  const std::vector<WorkUnit>& units_;
  bool append_eod_;
  std::vector<Key> keys_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::optional<PartNote>> waiting_;  // [unit]
  std::vector<std::vector<Place>> places_;        // [unit][key] of those that have them
};

}  // namespace mcpp
