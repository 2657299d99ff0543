// Access to tensors of other processes in shared memory.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "comm/mpi/transport/mpi_window.h"
#include "tensor/cpu/shared_arena.h"
#include "tensor/tensor.h"

namespace mcpp {

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
  /// they must then stay in place until the next barrier of the window. Collective.
  bool exchange(const Tensor& local_tensor);
  /// Returns the address of the tensor of a rank of the node.
  std::byte* operator[](int rank) const { return tensors_[rank]; }

 private:
  /// Metadata that a rank publishes in the window.
  struct Card {
    ArenaName arena;
    i64 offset;
    bool maps_all;
  };
  Card& card(int rank) const { return *static_cast<Card*>(window_.card(rank)); }
  bool find_tensors(const Tensor& local_tensor);
  bool learn_new_arenas();

  SharedWindow& window_;
  PeerArenas& arenas_;
  std::map<u64, bool> is_mapped_;  // by arena id: mapped by every rank of the node
  std::vector<std::byte*> tensors_;
};

}  // namespace mcpp
