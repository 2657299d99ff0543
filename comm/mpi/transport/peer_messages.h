// Intra-node messages copied once, by the receiver out of the sender's memory.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"
#include "comm/mpi/transport/mpi_window.h"
#include "tensor/cpu/shared_arena.h"
#include "tensor/tensor.h"

namespace mcpp {

// Access to tensors of other processes in shared memory.

/// Mappings of other processes' arenas, made once for all groups of a world and kept until the world is destroyed.
class PeerArenas {
 public:
  /// Returns the base address of the arena in this process, or null if it cannot be mapped.
  std::byte* find(const ArenaName& name);

 private:
  std::map<u64, std::unique_ptr<ArenaMapping>> mappings_;
};

/// Addresses of one tensor per rank of a node.
class PeerTensors {
 public:
  PeerTensors(SharedWindow& window, PeerArenas& arenas);

  /// Publishes the location of `local_tensor`. Returns true, on all ranks, if every rank can map the tensors of all;
  /// they must then not be moved until the next barrier of the window. Collective.
  bool exchange(const Tensor& local_tensor);
  /// Returns the address of the tensor of a rank of the node.
  std::byte* operator[](int rank) const { return tensors_[rank]; }

 private:
  /// Metadata that a rank publishes in the window.
  struct Card {
    ArenaName arena;
    i64 offset;
    bool has_mapped_all;
  };
  Card& card(int rank) const { return *static_cast<Card*>(window_.card(rank)); }
  bool find_tensors(const Tensor& local_tensor);
  bool map_new_arenas();

  SharedWindow& window_;
  PeerArenas& arenas_;
  std::map<u64, bool> is_mapped_;  // by arena id: mapped by every rank of the node
  std::vector<std::byte*> tensors_;
};

/// Message in flight, in shared memory of the sender.
struct Letter {
  enum class State : u32 {
    Posted,   ///< neither side is accessing it
    Moving,   ///< the sender is copying it to its outbox
    Reading,  ///< the receiver is copying it
    Taken     ///< the receiver has copied it
  };
  std::atomic<State> state;
  std::atomic<u64> number;      ///< counts the messages it was used for, to detect reuse
  bool is_next_arena_mappable;  ///< once taken: the receiver can map the arena in LetterCard::next_arena
  ArenaName arena;              ///< arena that contains the bytes
  i64 offset, bytes;
};

/// Notification sent by MPI: the location of the letter, and the arena from which the sender wants to send in place
/// next.
struct LetterCard {
  ArenaName outbox;
  i64 letter;
  ArenaName next_arena;
};

/// Letters of one process, shared by all groups of a world. The sender publishes the address of its tensor; nothing is
/// copied until the receiver copies it, unless the sender needs to modify the tensor first. A send therefore never
/// waits for its receive.
class PeerMessages {
 public:
  /// Returns null on all ranks if some rank of `node` cannot map the memory of a different one. Collective.
  static std::shared_ptr<PeerMessages> create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas);

  /// Posts a message. If `is_in_place` (the receiver can map the tensor's arena), the tensor must not change until
  /// detach(); otherwise it is copied immediately. The letter must be passed to release().
  Letter& post(const Tensor& t, bool is_in_place);
  LetterCard card_of(const Letter& letter, const ArenaName& next_arena) const;
  /// Allows `t`, posted in place, to be modified afterwards. Waits for the receiver as long as
  /// a copy would take, then copies the tensor.
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
