#include "comm/mpi/transport/peer_memory.h"

#include <new>

namespace mcpp {

std::byte* PeerArenas::find(const ArenaName& name) {
  const auto [entry, is_new] = mappings_.try_emplace(name.id);
  if (is_new) entry->second = map_arena(name);
  return entry->second ? entry->second->base() : nullptr;
}

PeerTensors::PeerTensors(SharedWindow& window, PeerArenas& arenas)
    : window_(window), arenas_(arenas), tensors_(window.size()) {
  static_assert(sizeof(Card) <= SharedWindow::kCardBytes);
  new (window_.card(window_.rank())) Card{};
}

bool PeerTensors::exchange(const Tensor& local_tensor) {
  const SharedArena* arena = static_cast<const CpuDevice&>(local_tensor.device()).arena();
  Card& local_card = card(window_.rank());
  if (arena && arena->contains(local_tensor.raw())) {
    local_card.arena = arena->name();
    local_card.offset = arena->offset_of(local_tensor.raw());
  } else {
    local_card.arena.id = 0;
  }
  window_.barrier();
  if (find_tensors(local_tensor)) return true;
  window_.barrier();  // before cards are reused: the fallback need not synchronize all ranks
  return false;
}

/// Looks up the tensors of all ranks after they have published their cards.
bool PeerTensors::find_tensors(const Tensor& local_tensor) {
  for (int r = 0; r < window_.size(); ++r)
    if (card(r).arena.id == 0) return false;
  // All ranks see the same cards and therefore agree on which arenas are new.
  for (int r = 0; r < window_.size(); ++r)
    if (!is_mapped_.contains(card(r).arena.id) && !learn_new_arenas()) return false;
  for (int r = 0; r < window_.size(); ++r) {
    if (!is_mapped_[card(r).arena.id]) return false;
    tensors_[r] = r == window_.rank() ? static_cast<std::byte*>(local_tensor.raw())
                                      : arenas_.find(card(r).arena) + card(r).offset;
  }
  return true;
}

/// Maps the new arenas of all ranks and exchanges whether every rank succeeded.
bool PeerTensors::learn_new_arenas() {
  bool maps_all = true;
  for (int r = 0; r < window_.size(); ++r)
    if (r != window_.rank()) maps_all = arenas_.find(card(r).arena) && maps_all;
  card(window_.rank()).maps_all = maps_all;
  window_.barrier();
  for (int r = 0; r < window_.size(); ++r) maps_all = card(r).maps_all && maps_all;
  for (int r = 0; r < window_.size(); ++r) is_mapped_.try_emplace(card(r).arena.id, maps_all);
  return maps_all;
}

}  // namespace mcpp
