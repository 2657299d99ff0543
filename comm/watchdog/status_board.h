// Status line of each rank of a node in shared memory, readable when communication hangs.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

class StatusBoard {
 public:
  struct Status {
    int rank = 0;
    i64 process = 0;     ///< process id
    u64 heartbeats = 0;  ///< increases while the rank's watchdog is alive
    bool waits = false;
    std::string text;
  };

  /// Creates a board of this rank only.
  explicit StatusBoard(int rank);
  /// Creates a board in `memory`, which has bytes_for(ranks) bytes, initially zero. `index` is the index of this rank
  /// on the board and `rank` its world rank.
  StatusBoard(std::shared_ptr<void> memory, int ranks, int index, int rank);
  static i64 bytes_for(int ranks);

  int rank() const { return static_cast<int>(entry(index_).rank); }
  /// Publishes the status of this rank and increments its heartbeats. Long texts are truncated.
  void show(std::string_view text, bool waits);
  /// Returns the status of all ranks of the node, by index. A rank that has not published a status has heartbeats == 0.
  std::vector<Status> read() const;
  /// Returns true for the first caller on the node.
  bool claim();
  /// Records for all ranks of the node that one of them received a stop signal. Returns true for the first caller.
  bool record_signal(int signal);
  /// Returns the first recorded signal, or 0.
  int recorded_signal() const;

 private:
  static constexpr std::size_t kWords = 24;
  /// Written by one process; `version` is odd during a write.
  struct Entry {
    std::atomic<u64> version, heartbeats, waits;
    std::atomic<i64> rank, process;
    std::array<std::atomic<u64>, kWords> text;
  };
  struct Header {
    std::atomic<u64> claimed, signal;
  };
  static_assert(std::atomic<u64>::is_always_lock_free && std::atomic<i64>::is_always_lock_free);
  Header& header() const { return *static_cast<Header*>(memory_.get()); }
  Entry& entry(int index) const;
  static Status read(const Entry& entry);

  std::shared_ptr<void> memory_;
  int ranks_, index_;
};

}  // namespace mcpp
