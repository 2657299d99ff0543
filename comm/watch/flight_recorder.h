// What a rank does in its groups, kept for those who ask why a run hangs.
#pragma once
#include <array>
#include <functional>
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

/// What a rank is busy with. How long others may be waited for depends on it.
enum class Activity : u8 { SettingUp, Training, Saving, Evaluating, Ending };
template <>
struct EnumNames<Activity> {
  static constexpr std::array<std::string_view, 5> value{"setting up", "training", "saving", "evaluating", "ending"};
};

/// A group as messages call it.
struct GroupName {
  std::string name;        ///< "tp", "dp_shard", "world"
  std::vector<int> ranks;  ///< of the world, by rank in the group

  std::string to_string() const;  ///< "tp (ranks 0 1)"
};

/// One operation as its rank sees it.
struct OperationRecord {
  enum class State : u8 {
    Started,  ///< goes on while the rank computes
    Waiting,  ///< the rank itself waits for it
    Queued,   ///< the rank went on, and a queue of the device waits for it
    Done
  };
  u64 id = 0;  ///< among all of the rank, from 1
  const GroupName* group = nullptr;
  const char* name = "";  ///< "all_reduce", "recv"
  int peer = -1;          ///< rank of the world that sends or receives the message
  /// From 1, among the collectives of the group, where all its ranks count alike, or among the messages from or to
  /// peer, where both sides do.
  u64 number = 0;
  i64 bytes = 0;      ///< of the tensor here
  i64 iteration = 0;  ///< of the training
  State state = State::Waiting;

  /// "all_reduce #12 of 1.2 MiB in tp (ranks 0 1), iteration 7".
  std::string to_string() const;
};

/// How long a rank may wait for others, in seconds.
struct HangLimits {
  double longest = 600;  ///< whatever it is for
  double step = 60;      ///< in a training step that follows another; but at least five times the longest step so far
};

/// What a rank does now.
struct Flight {
  HangLimits limits;
  Activity activity = Activity::SettingUp;
  i64 iteration = 0;
  /// In a training step that came right after another: after a save or an evaluation, however short, a rank may have to
  /// wait for those that are still in it.
  bool follows_step = false;
  /// Changes with every step of training and every operation that begins or ends.
  u64 events = 0;
  /// Not done, oldest first.
  std::vector<OperationRecord> open;
  std::string error;  ///< of an operation on a device, found by poll(); empty: none
};

/// The last kKept operations of one rank, in all its groups, and what it is busy with. For any thread. Outlives the
/// groups that write into it.
class FlightRecorder {
 public:
  static constexpr u64 kKept = 4096;

  FlightRecorder() : slots_(kKept) {}

  const GroupName& add_group(std::string name, std::vector<int> ranks);
  /// Notes an operation that the rank now waits for. Returns its id.
  u64 begin(OperationRecord operation);
  void set_state(u64 id, OperationRecord::State state);
  /// The operation goes on in a queue of the device; `is_done` tells when it is over, and throws when it failed. It is
  /// called by poll() alone.
  void set_queued(u64 id, std::function<bool()> is_done);
  /// Asks all queued operations whether they are done.
  void poll();

  /// `iteration`: the one that is trained, or the last one that was.
  void enter(Activity activity, i64 iteration);
  void set_limits(const HangLimits& limits);

  Flight flight() const;
  /// The last `count` operations that are done, newest first.
  std::vector<OperationRecord> last_done(std::size_t count) const;

 private:
  struct Slot {
    OperationRecord operation;
    std::shared_ptr<const std::function<bool()>> is_done;  // while queued
  };
  Slot& slot(u64 id) { return slots_[id % kKept]; }
  const Slot& slot(u64 id) const { return slots_[id % kKept]; }
  u64 oldest() const { return last_ < kKept ? 1 : last_ - kKept + 1; }

  mutable std::mutex mutex_;
  std::list<GroupName> groups_;  // operations refer to them
  std::vector<Slot> slots_;
  u64 last_ = 0;  // id
  Flight now_;
};

/// The entries of one group, made by the one thread that uses it. Without a recorder it does nothing.
class GroupLog {
 public:
  GroupLog() = default;
  GroupLog(FlightRecorder& recorder, std::string name, std::vector<int> ranks)
      : recorder_(&recorder), group_(&recorder.add_group(std::move(name), std::move(ranks))) {}

  /// One operation, from its call on; the rank waits for it until pause(). Done when it goes, unless it was handed on.
  class Entry {
   public:
    Entry() = default;
    Entry(FlightRecorder* recorder, u64 id) : recorder_(recorder), id_(id) {}
    Entry(Entry&& other) noexcept : recorder_(std::exchange(other.recorder_, nullptr)), id_(other.id_) {}
    Entry& operator=(Entry&&) = delete;
    ~Entry() { set(OperationRecord::State::Done); }

    void pause() { set(OperationRecord::State::Started); }
    void resume() { set(OperationRecord::State::Waiting); }
    /// See FlightRecorder::set_queued.
    void hand_on(std::function<bool()> is_done) {
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
  /// peer: rank in the group.
  Entry send(int peer, i64 bytes) { return message("send", sent_[peer], peer, bytes); }
  Entry recv(int peer, i64 bytes) { return message("recv", received_[peer], peer, bytes); }

 private:
  Entry message(const char* name, u64& count, int peer, i64 bytes);

  FlightRecorder* recorder_ = nullptr;
  const GroupName* group_ = nullptr;
  u64 collectives_ = 0;
  std::map<int, u64> sent_, received_;  // by peer
};

}  // namespace mcpp
