// One line per rank of a machine on what it does, in memory that they share: it can be read when communication hangs.
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
    i64 process = 0;  ///< its id
    u64 beats = 0;    ///< grows while the rank's watchdog is alive
    bool waits = false;
    std::string text;
  };

  /// A board of this rank alone.
  explicit StatusBoard(int rank);
  /// `memory` has bytes_for(ranks) that were zero at first; `own` is the place of this rank, `rank` its number in the
  /// world.
  StatusBoard(std::shared_ptr<void> memory, int ranks, int own, int rank);
  static i64 bytes_for(int ranks);

  int rank() const { return static_cast<int>(card(own_).rank); }
  /// What this rank does; counts as a sign of life. Long texts are cut.
  void show(std::string_view text, bool waits);
  /// Of all ranks of the machine, by place. A rank that never showed anything has no beats.
  std::vector<Status> read() const;
  /// True for the first caller on the machine.
  bool claim();
  /// Tells all ranks of the machine that one of them received a signal which asks to stop. True for the first one that
  /// does.
  bool note_signal(int signal);
  /// The first that was noted, or 0.
  int noted_signal() const;

 private:
  static constexpr std::size_t kWords = 24;
  /// Written by one process. `version` is odd while it writes.
  struct Card {
    std::atomic<u64> version, beats, waits;
    std::atomic<i64> rank, process;
    std::array<std::atomic<u64>, kWords> text;
  };
  struct Header {
    std::atomic<u64> claimed, signal;
  };
  static_assert(std::atomic<u64>::is_always_lock_free && std::atomic<i64>::is_always_lock_free);
  Header& header() const { return *static_cast<Header*>(memory_.get()); }
  Card& card(int place) const;
  static Status read(const Card& card);

  std::shared_ptr<void> memory_;
  int ranks_, own_;
};

}  // namespace mcpp
