// Assignment of file positions to the tokens of units.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "data/parts/parts_folder.h"

namespace mcpp {

/// Computes the place of a unit once the sizes of all earlier units are known. Every process is notified of all units
/// and computes identical places. Thread-safe.
class UnitPlaces {
 public:
  /// `units` must outlive the object.
  UnitPlaces(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// Adds the note of a unit, once per unit, in any order. Throws BadInput if a document is too long or if a part was
  /// written at a different place.
  void add(std::size_t unit, PartNote note);
  /// Waits until the places of a unit are known and returns them, [key]. Returns std::nullopt if `stop` is requested
  /// first.
  std::optional<std::vector<Place>> wait_for(std::size_t unit, const std::stop_token& stop);

 private:
  struct Key {
    std::string prefix;
    i64 end = 0;              // bytes so far
    std::optional<i64> open;  // tokens of the document that continues in the next unit
  };
  Place next_place(Key& key, const WorkUnit& unit, const PartOfKey& part) const;
  void place_next(const PartNote& note);

  const std::vector<WorkUnit>& units_;
  bool append_eod_;
  std::vector<Key> keys_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::optional<PartNote>> waiting_;  // [unit]
  std::vector<std::vector<Place>> places_;        // [unit][key], for units whose places are known
};

}  // namespace mcpp
