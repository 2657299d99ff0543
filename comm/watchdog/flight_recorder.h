// Record of the operations of a rank in its groups, for diagnosing hangs.
#pragma once
#include <array>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fields.h"
#include "base/types.h"

namespace mcpp {

/// Activity of a rank, which determines the timeout for waiting for other ranks.
enum class Activity : u8 { SettingUp, Training, Saving, Evaluating, Ending };
template <>
struct EnumNames<Activity> {
  static constexpr std::array<std::string_view, 5> value{"setting up", "training", "saving", "evaluating", "ending"};
};

/// Name and ranks of a group, for messages.
struct GroupName {
  std::string name;        ///< "tp", "dp_shard", "world"
  std::vector<int> ranks;  ///< world ranks, by rank in the group

  std::string to_string() const;  ///< "tp (ranks 0 1)"
};

/// Operation as seen by one rank.
struct OperationRecord {
  enum class State : u8 {
    Started,  ///< operation in flight while the rank computes
    Waiting,  ///< the rank is blocked on it
    Queued,   ///< the rank continues; a device queue waits for it
    Done
  };
  u64 id = 0;  ///< unique within the rank, starting at 1
  const GroupName* group = nullptr;
  const char* name = "";  ///< "all_reduce", "recv"
  int peer = -1;          ///< world rank of the peer of a message
  /// Sequence number, starting at 1: among the collectives of the group (identical on all its ranks), or among the
  /// messages in one direction between this rank and peer (identical on both).
  u64 number = 0;
  i64 bytes = 0;      ///< size of the local tensor
  i64 iteration = 0;  ///< training iteration
  State state = State::Waiting;

  /// Returns e.g. "all_reduce #12 of 1.2 MiB in tp (ranks 0 1), iteration 7".
  std::string to_string() const;
};

/// Timeouts for waiting for other ranks, in seconds.
struct HangTimeouts {
  double distributed = 600;  ///< limit in any activity
  double step = 60;  ///< limit in a training step that follows another step; raised to 5 times the longest step so far

  /// Returns infinite limits.
  static HangTimeouts none() {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    return {.distributed = kNever, .step = kNever};
  }
};

/// Snapshot of what a rank is doing.
struct FlightSnapshot {
  HangTimeouts limits;
  Activity activity = Activity::SettingUp;
  i64 iteration = 0;
  /// True in a training step directly after another step. After a save or an evaluation, however short, a rank may have
  /// to wait for ranks that have not finished it.
  bool follows_step = false;
  /// Changes with every training step and whenever an operation begins or ends.
  u64 events = 0;
  /// Operations in flight, oldest first.
  std::vector<OperationRecord> open;
  std::string error;  ///< error of a device operation, found by poll(); empty if none
};

/// Ring buffer of the last kCapacity operations of one rank in all its groups, and its current activity. Thread-safe.
/// Must outlive the groups that write to it.
class FlightRecorder {
 public:
  static constexpr u64 kCapacity = 4096;

  FlightRecorder() : slots_(kCapacity) {}

  const GroupName& add_group(std::string name, std::vector<int> ranks);
  /// Records an operation that the rank starts to wait for. Returns its id.
  u64 begin(OperationRecord operation);
  void set_state(u64 id, OperationRecord::State state);
  /// Marks the operation as queued on the device. `is_done` returns whether it has completed and throws if it failed;
  /// only poll() calls it.
  void set_queued(u64 id, std::function<bool()> is_done);
  /// Updates the state of all queued operations.
  void poll();

  /// Sets the current activity. `iteration` is the current or last training iteration.
  void enter(Activity activity, i64 iteration);
  void set_limits(const HangTimeouts& limits);

  FlightSnapshot snapshot() const;
  /// Returns the last `count` completed operations, newest first.
  std::vector<OperationRecord> last_done(std::size_t count) const;

 private:
  struct Slot {
    OperationRecord operation;
    std::shared_ptr<const std::function<bool()>> is_done;  // set while queued
  };
  Slot& slot(u64 id) { return slots_[id % kCapacity]; }
  const Slot& slot(u64 id) const { return slots_[id % kCapacity]; }
  u64 oldest() const { return last_ < kCapacity ? 1 : last_ - kCapacity + 1; }

  mutable std::mutex mutex_;
  std::list<GroupName> groups_;  // referenced by operations
  std::vector<Slot> slots_;
  u64 last_ = 0;  // id of the last operation
  FlightSnapshot current_;
};

/// Log of one group. Not thread-safe. No-op without a recorder.
class GroupLog {
 public:
  GroupLog() = default;
  GroupLog(FlightRecorder& recorder, std::string name, std::vector<int> ranks)
      : recorder_(&recorder), group_(&recorder.add_group(std::move(name), std::move(ranks))) {}

  /// Log entry of one operation, from its start. The rank waits for the operation until pause(). The destructor marks
  /// it as done unless track_completion() was called.
  class Entry {
   public:
    Entry() = default;
    Entry(FlightRecorder* recorder, u64 id) : recorder_(recorder), id_(id) {}
    Entry(Entry&& other) noexcept : recorder_(std::exchange(other.recorder_, nullptr)), id_(other.id_) {}
    Entry& operator=(Entry&&) = delete;
    ~Entry() { set(OperationRecord::State::Done); }

    void pause() { set(OperationRecord::State::Started); }
    void resume() { set(OperationRecord::State::Waiting); }
    /// Marks the operation as queued on the device (FlightRecorder::set_queued()).
    void track_completion(std::function<bool()> is_done) {
      if (recorder_) std::exchange(recorder_, nullptr)->set_queued(id_, std::move(is_done));
    }

   private:
    void set(OperationRecord::State state) {
      if (recorder_) recorder_->set_state(id_, state);
    }
    FlightRecorder* recorder_ = nullptr;
    u64 id_ = 0;
  };

  Entry collective(const char* name, i64 bytes);
  /// Begins an entry for a message to rank `peer` of the group.
  Entry send(int peer, i64 bytes) { return message("send", sent_[peer], peer, bytes); }
  Entry recv(int peer, i64 bytes) { return message("recv", received_[peer], peer, bytes); }

 private:
  Entry message(const char* name, u64& count, int peer, i64 bytes);

  FlightRecorder* recorder_ = nullptr;
  const GroupName* group_ = nullptr;
  u64 collectives_ = 0;
  std::map<int, u64> sent_, received_;  // number of messages, by peer
};

}  // namespace mcpp
