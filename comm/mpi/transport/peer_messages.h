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

  /// Publishes the location of `local_tensor`. Returns true, on all ranks, if every rank can map the tensors of all
  /// ranks; these must then stay in place until the next barrier of the window. Collective.
  bool exchange(const Tensor& local_tensor);
  /// Returns the address of the tensor of a rank of the node.
  std::byte* operator[](int rank) const { return tensors_[rank]; }

 private:
  /// Location of a tensor, as published in the window.
  struct TensorLocation {
    ArenaName arena;
    i64 offset;
    bool has_mapped_all;
  };
  TensorLocation& location(int rank) const { return *static_cast<TensorLocation*>(window_.metadata(rank)); }
  bool find_tensors(const Tensor& local_tensor);
  bool map_new_arenas();

  SharedWindow& window_;
  PeerArenas& arenas_;
  std::map<u64, bool> is_mapped_;  // indexed by arena id: mapped by every rank of the node
  std::vector<std::byte*> tensors_;
};

/// Descriptor of a message in flight, in shared memory of the sender.
struct MessageSlot {
  enum class State : u32 {
    Posted,   ///< neither side is accessing it
    Copying,  ///< the sender is copying it to its send buffer
    Reading,  ///< the receiver is copying it
    Received  ///< the receiver has copied it
  };
  std::atomic<State> state;
  std::atomic<u64> number;      ///< counts the messages it was used for, to detect reuse
  bool is_next_arena_mappable;  ///< set once received: the receiver can map MessageHeader::next_arena
  ArenaName arena;              ///< arena that contains the bytes
  i64 offset, bytes;
};

/// Header sent through MPI: the location of the slot, and the arena from which the sender will send in place next.
struct MessageHeader {
  ArenaName send_buffer;
  i64 slot;
  ArenaName next_arena;
};

/// Messages of one process, shared by all groups of a world. The sender publishes the address of its tensor, and the
/// receiver copies the tensor. If the sender needs to modify the tensor earlier, it copies the tensor itself, so a send
/// never waits for its receive.
class PeerMessages {
 public:
  /// Returns null on all ranks if any rank of `node` cannot map the memory of every other rank. Collective.
  static std::shared_ptr<PeerMessages> create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas);

  /// Posts a message. If `is_in_place` (the receiver can map the tensor's arena), the tensor must not change until
  /// detach(); otherwise it is copied immediately. The slot must be passed to release().
  MessageSlot& post(const Tensor& t, bool is_in_place);
  MessageHeader header_of(const MessageSlot& slot, const ArenaName& next_arena) const;
  /// Allows `t`, posted in place, to be modified afterwards. Waits for the receiver for the duration of a copy, then
  /// copies the tensor.
  void detach(MessageSlot& slot, const Tensor& t);
  static bool is_received(const MessageSlot& slot) { return slot.state.load() == MessageSlot::State::Received; }
  /// Recycles the slot of a received message.
  void release(MessageSlot& slot);

  /// Copies the message from rank `source` to `t`. Throws if the sizes differ.
  void receive(const MessageHeader& header, Tensor& t, int source);

 private:
  PeerMessages(std::unique_ptr<SharedArena> send_buffer, std::shared_ptr<PeerArenas> arenas);
  void copy_to_send_buffer(MessageSlot& slot, const Tensor& t);
  std::byte* find(const ArenaName& arena, i64 offset, int owner);

  std::unique_ptr<SharedArena> send_buffer_;  // memory of the slots and of copied messages
  std::shared_ptr<PeerArenas> arenas_;
  std::vector<MessageSlot*> free_;
};

}  // namespace mcpp
