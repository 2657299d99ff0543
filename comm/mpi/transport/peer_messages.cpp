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
    if (!is_mapped_.contains(card(r).arena.id) && !map_new_arenas()) return false;
  for (int r = 0; r < window_.size(); ++r) {
    if (!is_mapped_[card(r).arena.id]) return false;
    tensors_[r] = r == window_.rank() ? static_cast<std::byte*>(local_tensor.raw())
                                      : arenas_.find(card(r).arena) + card(r).offset;
  }
  return true;
}

/// Maps the new arenas of all ranks and exchanges whether every rank succeeded.
bool PeerTensors::map_new_arenas() {
  bool has_mapped_all = true;
  for (int r = 0; r < window_.size(); ++r)
    if (r != window_.rank()) has_mapped_all = arenas_.find(card(r).arena) && has_mapped_all;
  card(window_.rank()).has_mapped_all = has_mapped_all;
  window_.barrier();
  for (int r = 0; r < window_.size(); ++r) has_mapped_all = card(r).has_mapped_all && has_mapped_all;
  for (int r = 0; r < window_.size(); ++r) is_mapped_.try_emplace(card(r).arena.id, has_mapped_all);
  return has_mapped_all;
}

namespace {

using State = Letter::State;
using Clock = std::chrono::steady_clock;

constexpr i64 kLetterPageBytes = 4096;
/// Address space for copied messages not taken yet. All ranks of a node map it, so it must not exhaust theirs.
constexpr i64 kOutboxBytes = i64{64} << 30;
/// Estimated copy bandwidth: the receiver gets the time of a copy to arrive.
constexpr double kCopyBytesPerSecond = 5e9;

/// Changes a posted letter to `state`. Returns false if the other side was faster.
bool try_claim(Letter& letter, State state) {
  State posted = State::Posted;
  return letter.state.compare_exchange_strong(posted, state);
}

}  // namespace

std::shared_ptr<PeerMessages> PeerMessages::create(const MpiComm& node, std::shared_ptr<PeerArenas> arenas) {
  auto outbox = SharedArena::create("messages", kOutboxBytes);
  const ArenaName own = outbox ? outbox->name() : ArenaName();
  std::vector<ArenaName> names(static_cast<std::size_t>(node.size()));
  check_mpi(MPI_Allgather(&own, sizeof(own), MPI_BYTE, names.data(), sizeof(own), MPI_BYTE, node.get()),
            "MPI_Allgather");
  int has_mapped_all = 1;
  for (const ArenaName& name : names)
    has_mapped_all = has_mapped_all && name.id != 0 && (name.id == own.id || arenas->find(name));
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &has_mapped_all, 1, MPI_INT, MPI_MIN, node.get()), "MPI_Allreduce");
  if (!has_mapped_all) return nullptr;
  return std::shared_ptr<PeerMessages>(new PeerMessages(std::move(outbox), std::move(arenas)));
}

PeerMessages::PeerMessages(std::unique_ptr<SharedArena> outbox, std::shared_ptr<PeerArenas> arenas)
    : outbox_(std::move(outbox)), arenas_(std::move(arenas)) {
  static_assert(std::atomic<State>::is_always_lock_free);
}

Letter& PeerMessages::post(const Tensor& t, bool is_in_place) {
  if (free_.empty()) {
    auto* page = static_cast<Letter*>(outbox_->allocate(kLetterPageBytes));
    MCPP_CHECK(page, "no shared memory is left for messages");
    for (i64 i = 0; i < kLetterPageBytes / static_cast<i64>(sizeof(Letter)); ++i)
      free_.push_back(new (page + i) Letter{});
  }
  Letter& letter = *free_.back();
  free_.pop_back();
  ++letter.number;
  letter.is_next_arena_mappable = false;
  letter.bytes = t.bytes();
  if (is_in_place) {
    const SharedArena& arena = *static_cast<const CpuDevice&>(t.device()).arena();
    letter.arena = arena.name(), letter.offset = arena.offset_of(t.raw());
  } else {
    copy_to_outbox(letter, t);
  }
  letter.state.store(State::Posted);
  return letter;
}

void PeerMessages::copy_to_outbox(Letter& letter, const Tensor& t) {
  void* copy = outbox_->allocate(letter.bytes);
  MCPP_CHECK(copy, "no shared memory is left for a message of ", letter.bytes, " bytes");
  copy_bytes(copy, t.raw(), letter.bytes);
  letter.arena = outbox_->name(), letter.offset = outbox_->offset_of(copy);
}

LetterCard PeerMessages::card_of(const Letter& letter, const ArenaName& next_arena) const {
  return {.outbox = outbox_->name(), .letter = outbox_->offset_of(&letter), .next_arena = next_arena};
}

void PeerMessages::detach(Letter& letter, const Tensor& t) {
  const std::chrono::duration<double> copy_time(static_cast<double>(letter.bytes) / kCopyBytesPerSecond);
  const auto begin = Clock::now();
  while (letter.state.load() == State::Posted && Clock::now() - begin < copy_time) ::sched_yield();
  if (try_claim(letter, State::Moving)) {
    copy_to_outbox(letter, t);
    letter.state.store(State::Posted);
  }
  while (letter.state.load() == State::Reading) ::sched_yield();  // until the receiver has copied it
}

void PeerMessages::release(Letter& letter) {
  if (letter.arena.id == outbox_->name().id) outbox_->free(outbox_->at(letter.offset));
  free_.push_back(&letter);
}

std::byte* PeerMessages::find(const ArenaName& arena, i64 offset, int owner) {
  std::byte* base = arenas_->find(arena);
  MCPP_CHECK(base, "the memory that rank ", owner, " sends from can no longer be mapped");
  return base + offset;
}

void PeerMessages::take(const LetterCard& card, Tensor& t, int source) {
  Letter& letter = *std::launder(reinterpret_cast<Letter*>(find(card.outbox, card.letter, source)));
  letter.is_next_arena_mappable = card.next_arena.id != 0 && arenas_->find(card.next_arena) != nullptr;
  while (!try_claim(letter, State::Reading)) ::sched_yield();  // while the sender copies it
  const i64 bytes = letter.bytes;
  if (bytes == t.bytes()) copy_bytes(t.raw(), find(letter.arena, letter.offset, source), bytes);
  letter.state.store(State::Taken);  // even on a size mismatch, so that the sender does not wait
  MCPP_CHECK(bytes == t.bytes(), "rank ", source, " sent ", bytes, " bytes, expected ", t.bytes());
}

}  // namespace mcpp
