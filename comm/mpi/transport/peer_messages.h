// Messages inside a machine that are copied once: out of the sender's memory, by the rank that receives them.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"
#include "comm/mpi/transport/peer_memory.h"

namespace mcpp {

/// A message on its way, in memory that the sender lets others map.
struct Letter {
  enum class State : u32 {
    Posted,   ///< nobody touches it
    Moving,   ///< the sender copies it elsewhere
    Reading,  ///< the receiver copies it
    Taken
  };
  std::atomic<State> state;
  std::atomic<u64> number;  ///< of the messages it has been used for, for those who ask about an earlier one
  bool reached;             ///< once taken: the receiver can map the arena that it was asked about
  ArenaName arena;          ///< where the bytes are
  i64 offset, bytes;
};

/// What the sender sends by MPI: where the letter is, and the arena that it wants to send from in place next time.
struct LetterCard {
  ArenaName outbox;
  i64 letter;
  ArenaName ask;
};

/// Those of one process, over all groups of a world. A sender shows where its tensor is; until the receiver has copied
/// it nothing is copied, unless the sender wants to change the tensor before. So a send never waits for its receive.
class PeerMessages {
 public:
  /// Null on all where a rank of `node` cannot map the memory of another. Called by all of them.
  static std::shared_ptr<PeerMessages> create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas);

  /// in_place: the receiver can map the tensor's arena. The tensor must then stay as it is until detach(); otherwise it
  /// is copied at once. The letter is for release().
  Letter& post(const Tensor& t, bool in_place);
  LetterCard card_of(const Letter& letter, const ArenaName& ask) const;
  /// From here on `t`, which the letter was posted with in place, may change. Gives the receiver as long as a copy
  /// takes, then copies.
  void detach(Letter& letter, const Tensor& t);
  static bool is_taken(const Letter& letter) { return letter.state.load() == Letter::State::Taken; }
  /// After it was taken.
  void release(Letter& letter);

  /// Copies the message of that rank to `t`. Throws when it has another number of bytes.
  void take(const LetterCard& card, Tensor& t, int source);

 private:
  PeerMessages(std::unique_ptr<SharedArena> outbox, std::shared_ptr<PeerArenas> arenas);
  void copy_to_outbox(Letter& letter, const Tensor& t);
  std::byte* find(const ArenaName& arena, i64 offset, int owner);

  std::unique_ptr<SharedArena> outbox_;  // letters, and bytes that were copied
  std::shared_ptr<PeerArenas> arenas_;
  std::vector<Letter*> free_;
};

}  // namespace mcpp
