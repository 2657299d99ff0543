// Checksums of the data that a rank contributes to communication, used to compare two executions of the same step.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Part of a rank in one operation.
struct Contribution {
  /// Name of the operation, identical on all ranks that take part in it: "tp of rank 2, all_reduce #5".
  std::string operation;
  /// Checksum of the data that this rank sends or adds; std::nullopt if it only receives.
  std::optional<std::string> checksum;

  bool operator==(const Contribution&) const = default;
};

/// Log of the operations of all groups of a rank. Records nothing unless it was started. Not thread-safe.
class ContributionLog {
 public:
  void start();
  /// Stops recording and returns the contributions since start(), in the order of the operations.
  std::vector<Contribution> stop();
  bool is_recording() const { return is_recording_; }

  /// Records an operation of the group whose members are the world ranks `ranks`. `data` is null if this rank only
  /// receives. Waits for the device.
  void add_collective(const char* operation, const std::string& group, std::span<const int> ranks, const Tensor* data);
  /// Overload for the parts of `data` that are sent.
  void add_collective(const char* operation, const std::string& group, std::span<const int> ranks, const Tensor& data,
                      std::span<const Part> parts);
  /// Records a message between two members of a group, given by their index.
  void add_message(const std::string& group, std::span<const int> ranks, int from, int to, const Tensor* data);

 private:
  void add(const std::string& operation, std::optional<std::string> checksum);

  bool is_recording_ = false;
  std::map<std::string, i64> counts_;  // operations so far, by group and, for messages, by direction
  std::vector<Contribution> contributions_;
};

}  // namespace mcpp
