// Tensors of other processes, read and written in place.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "comm/mpi/transport/mpi_window.h"
#include "tensor/cpu/shared_arena.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Arenas of other processes, each mapped once for all groups of a world and until the world ends.
class PeerArenas {
 public:
  /// Where the arena begins in this process; null when it cannot be mapped.
  std::byte* find(const ArenaName& name);

 private:
  std::map<u64, std::unique_ptr<ArenaMapping>> mappings_;
};

/// One tensor of each rank of a node, as this rank sees them.
class PeerTensors {
 public:
  PeerTensors(SharedWindow& window, PeerArenas& arenas);

  /// Shows the peers where `own` is. True when every rank can reach the tensors of all, which then stay as they are
  /// until the next barrier of the window; the same on all ranks. Called by all.
  bool exchange(const Tensor& own);
  /// The tensor of a rank of the node.
  std::byte* operator[](int rank) const { return tensors_[rank]; }

 private:
  /// What a rank tells the others, in the window.
  struct Card {
    ArenaName arena;
    i64 offset;
    bool maps_all;
  };
  Card& card(int rank) const { return *static_cast<Card*>(window_.card(rank)); }
  bool find_tensors(const Tensor& own);
  bool learn_new_arenas();

  SharedWindow& window_;
  PeerArenas& arenas_;
  std::map<u64, bool> is_mapped_;  // of arenas seen so far: by every rank of the node
  std::vector<std::byte*> tensors_;
};

}  // namespace mcpp
