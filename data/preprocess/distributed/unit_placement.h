// Assignment of file positions to the tokens of units.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "data/preprocess/distributed/parts_folder.h"

namespace mcpp {

/// Computes the place of a unit once the sizes of all earlier units are known. Every process is notified of all units
/// and computes identical places. Thread-safe.
class UnitPlacement {
 public:
  /// `units` must outlive the object.
  UnitPlacement(const PartsFolder& folder, const std::vector<WorkUnit>& units);

  /// Adds the note of a unit, once per unit, in any order. Throws BadInput if a document is too long or if a part was
  /// written at a different place.
  void add(std::size_t unit, PartMetadata metadata);
  /// Waits until the places of a unit are known and returns them, [key]. Returns std::nullopt if `stop` is requested
  /// first.
  std::optional<std::vector<OutputRange>> wait_for(std::size_t unit, const std::stop_token& stop);

 private:
  struct Key {
    std::string prefix;
    i64 end = 0;              // bytes so far
    std::optional<i64> open;  // tokens of the document that continues in the next unit
  };
  OutputRange next_output_range(Key& key, const WorkUnit& unit, const KeyPart& part) const;
  void assign_next_range(const PartMetadata& metadata);

  const std::vector<WorkUnit>& units_;
  bool append_eod_;
  std::vector<Key> keys_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::optional<PartMetadata>> pending_metadata_;  // [unit]
  std::vector<std::vector<OutputRange>> output_ranges_;        // [unit][key], for units whose places are known
};

}  // namespace mcpp
