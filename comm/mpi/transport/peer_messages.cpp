#include "comm/mpi/transport/peer_messages.h"

#include <sched.h>

#include <chrono>
#include <new>

#include "comm/checks.h"
#include "comm/copy_bytes.h"

namespace mcpp {

std::byte* PeerArenas::find(const ArenaName& name) {
  const auto [entry, is_new] = mappings_.try_emplace(name.id);
  if (is_new) entry->second = map_arena(name);
  return entry->second ? entry->second->base() : nullptr;
}

PeerTensors::PeerTensors(SharedWindow& window, PeerArenas& arenas)
    : window_(window), arenas_(arenas), tensors_(window.size()) {
  static_assert(sizeof(TensorLocation) <= SharedWindow::kMetadataBytes);
  new (window_.metadata(window_.rank())) TensorLocation{};
}

bool PeerTensors::exchange(const Tensor& local_tensor) {
  const SharedArena* arena = static_cast<const CpuDevice&>(local_tensor.device()).arena();
  TensorLocation& local = location(window_.rank());
  if (arena && arena->contains(local_tensor.raw())) {
    local.arena = arena->name();
    local.offset = arena->offset_of(local_tensor.raw());
  } else {
    local.arena.id = 0;
  }
  window_.barrier();
  if (find_tensors(local_tensor)) return true;
  window_.barrier();  // before locations are reused: the fallback need not synchronize all ranks
  return false;
}

/// Looks up the tensors of all ranks after they have published their locations.
bool PeerTensors::find_tensors(const Tensor& local_tensor) {
  for (int r = 0; r < window_.size(); ++r)
    if (location(r).arena.id == 0) return false;
  // All ranks see the same locations and therefore agree on which arenas are new.
  for (int r = 0; r < window_.size(); ++r)
    if (!is_mapped_.contains(location(r).arena.id) && !map_new_arenas()) return false;
  for (int r = 0; r < window_.size(); ++r) {
    if (!is_mapped_[location(r).arena.id]) return false;
    tensors_[r] = r == window_.rank() ? static_cast<std::byte*>(local_tensor.raw())
                                      : arenas_.find(location(r).arena) + location(r).offset;
  }
  return true;
}

/// Maps the new arenas of all ranks and exchanges whether every rank succeeded.
bool PeerTensors::map_new_arenas() {
  bool has_mapped_all = true;
  for (int r = 0; r < window_.size(); ++r)
    if (r != window_.rank()) has_mapped_all = arenas_.find(location(r).arena) && has_mapped_all;
  location(window_.rank()).has_mapped_all = has_mapped_all;
  window_.barrier();
  for (int r = 0; r < window_.size(); ++r) has_mapped_all = location(r).has_mapped_all && has_mapped_all;
  for (int r = 0; r < window_.size(); ++r) is_mapped_.try_emplace(location(r).arena.id, has_mapped_all);
  return has_mapped_all;
}

namespace {

using State = MessageSlot::State;
using Clock = std::chrono::steady_clock;

constexpr i64 kSlotPageBytes = 4096;
/// Address space for copied messages that were not received yet. All ranks of a node map it, so it must not exhaust
/// theirs.
constexpr i64 kSendBufferBytes = i64{64} << 30;
/// Estimated copy bandwidth: the sender waits for the receiver for the duration of a copy.
constexpr double kCopyBytesPerSecond = 5e9;

/// Changes a posted slot to `state`. Returns false if the other side was faster.
bool try_claim(MessageSlot& slot, State state) {
  State posted = State::Posted;
  return slot.state.compare_exchange_strong(posted, state);
}

}  // namespace

std::shared_ptr<PeerMessages> PeerMessages::create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas) {
  auto send_buffer = SharedArena::create("messages", kSendBufferBytes);
  const ArenaName own = send_buffer ? send_buffer->name() : ArenaName();
  std::vector<ArenaName> names(static_cast<std::size_t>(node.size()));
  check_mpi(MPI_Allgather(&own, sizeof(own), MPI_BYTE, names.data(), sizeof(own), MPI_BYTE, node.get()),
            "MPI_Allgather");
  int has_mapped_all = 1;
  for (const ArenaName& name : names)
    has_mapped_all = has_mapped_all && name.id != 0 && (name.id == own.id || arenas->find(name));
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &has_mapped_all, 1, MPI_INT, MPI_MIN, node.get()), "MPI_Allreduce");
  if (!has_mapped_all) return nullptr;
  return std::shared_ptr<PeerMessages>(new PeerMessages(std::move(send_buffer), std::move(arenas)));
}

PeerMessages::PeerMessages(std::unique_ptr<SharedArena> send_buffer, std::shared_ptr<PeerArenas> arenas)
    : send_buffer_(std::move(send_buffer)), arenas_(std::move(arenas)) {
  static_assert(std::atomic<State>::is_always_lock_free);
}

MessageSlot& PeerMessages::post(const Tensor& t, bool is_in_place) {
  if (free_.empty()) {
    auto* page = static_cast<MessageSlot*>(send_buffer_->allocate(kSlotPageBytes));
    MCPP_CHECK(page, "no shared memory is left for messages");
    for (i64 i = 0; i < kSlotPageBytes / static_cast<i64>(sizeof(MessageSlot)); ++i)
      free_.push_back(new (page + i) MessageSlot{});
  }
  MessageSlot& slot = *free_.back();
  free_.pop_back();
  ++slot.number;
  slot.is_next_arena_mappable = false;
  slot.bytes = t.bytes();
  if (is_in_place) {
    const SharedArena& arena = *static_cast<const CpuDevice&>(t.device()).arena();
    slot.arena = arena.name(), slot.offset = arena.offset_of(t.raw());
  } else {
    copy_to_send_buffer(slot, t);
  }
  slot.state.store(State::Posted);
  return slot;
}

void PeerMessages::copy_to_send_buffer(MessageSlot& slot, const Tensor& t) {
  void* copy = send_buffer_->allocate(slot.bytes);
  MCPP_CHECK(copy, "no shared memory is left for a message of ", slot.bytes, " bytes");
  copy_bytes(copy, t.raw(), slot.bytes);
  slot.arena = send_buffer_->name(), slot.offset = send_buffer_->offset_of(copy);
}

MessageHeader PeerMessages::header_of(const MessageSlot& slot, const ArenaName& next_arena) const {
  return {.send_buffer = send_buffer_->name(), .slot = send_buffer_->offset_of(&slot), .next_arena = next_arena};
}

void PeerMessages::detach(MessageSlot& slot, const Tensor& t) {
  const std::chrono::duration<double> copy_time(static_cast<double>(slot.bytes) / kCopyBytesPerSecond);
  const auto begin = Clock::now();
  while (slot.state.load() == State::Posted && Clock::now() - begin < copy_time) ::sched_yield();
  if (try_claim(slot, State::Copying)) {
    copy_to_send_buffer(slot, t);
    slot.state.store(State::Posted);
  }
  while (slot.state.load() == State::Reading) ::sched_yield();  // until the receiver has copied it
}

void PeerMessages::release(MessageSlot& slot) {
  if (slot.arena.id == send_buffer_->name().id) send_buffer_->free(send_buffer_->at(slot.offset));
  free_.push_back(&slot);
}

std::byte* PeerMessages::find(const ArenaName& arena, i64 offset, int owner) {
  std::byte* base = arenas_->find(arena);
  MCPP_CHECK(base, "the memory that rank ", owner, " sends from can no longer be mapped");
  return base + offset;
}

void PeerMessages::receive(const MessageHeader& header, Tensor& t, int source) {
  MessageSlot& slot = *std::launder(reinterpret_cast<MessageSlot*>(find(header.send_buffer, header.slot, source)));
  slot.is_next_arena_mappable = header.next_arena.id != 0 && arenas_->find(header.next_arena) != nullptr;
  while (!try_claim(slot, State::Reading)) ::sched_yield();  // while the sender copies it
  const i64 bytes = slot.bytes;
  if (bytes == t.bytes()) copy_bytes(t.raw(), find(slot.arena, slot.offset, source), bytes);
  slot.state.store(State::Received);  // even on a size mismatch, so that the sender does not wait
  MCPP_CHECK(bytes == t.bytes(), "rank ", source, " sent ", bytes, " bytes, expected ", t.bytes());
}

}  // namespace mcpp
