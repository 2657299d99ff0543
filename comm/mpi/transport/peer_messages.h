// Intra-node messages copied once, by the receiver out of the sender's memory.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"
#include "comm/mpi/transport/peer_memory.h"

namespace mcpp {

/// Message in flight, in shared memory of the sender.
struct Letter {
  enum class State : u32 {
    Posted,   ///< neither side is accessing it
    Moving,   ///< the sender is copying it to its outbox
    Reading,  ///< the receiver is copying it
    Taken
  };
  std::atomic<State> state;
  std::atomic<u64> number;  ///< counts the messages it was used for, to detect reuse
  bool is_ask_mappable;     ///< once taken: the receiver can map the arena in LetterCard::ask
  ArenaName arena;          ///< where the bytes are
  i64 offset, bytes;
};

/// Notification sent by MPI: where the letter is, and the arena that the sender wants to send from in place next time.
struct LetterCard {
  ArenaName outbox;
  i64 letter;
  ArenaName ask;
};

/// Letters of one process, shared by all groups of a world. The sender publishes where its tensor is; nothing is copied
/// until the receiver copies it, unless the sender needs to modify the tensor first. A send therefore never waits for
/// its receive.
class PeerMessages {
 public:
  /// Returns null on all ranks if some rank of `node` cannot map the memory of another. Collective.
  static std::shared_ptr<PeerMessages> create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas);

  /// Posts a message. If `in_place` (the receiver can map the tensor's arena), the tensor must not change until
  /// detach(); otherwise it is copied immediately. The letter must be passed to release().
  Letter& post(const Tensor& t, bool in_place);
  LetterCard card_of(const Letter& letter, const ArenaName& ask) const;
  /// Allows `t`, posted in place, to be modified afterwards. Gives the receiver the time of a copy to take the letter,
  /// then copies it.
  void detach(Letter& letter, const Tensor& t);
  static bool is_taken(const Letter& letter) { return letter.state.load() == Letter::State::Taken; }
  /// Recycles a letter that was taken.
  void release(Letter& letter);

  /// Copies the message from rank `source` to `t`. Throws if the sizes differ.
  void take(const LetterCard& card, Tensor& t, int source);

 private:
  PeerMessages(std::unique_ptr<SharedArena> outbox, std::shared_ptr<PeerArenas> arenas);
  void copy_to_outbox(Letter& letter, const Tensor& t);
  std::byte* find(const ArenaName& arena, i64 offset, int owner);

  std::unique_ptr<SharedArena> outbox_;  // letters and copied messages
  std::shared_ptr<PeerArenas> arenas_;
  std::vector<Letter*> free_;
};

}  // namespace mcpp
