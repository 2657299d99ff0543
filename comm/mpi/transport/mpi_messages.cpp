#include "comm/mpi/transport/mpi_messages.h"

#include <cstring>

#include "comm/checks.h"
#include "comm/copy_bytes.h"

namespace mcpp {
namespace {

constexpr int kTag = 0, kExchangeTag = 1;
/// From here on one copy is worth more than the way to find it.
constexpr i64 kLetterBytes = 32 << 10;

Outgoing new_outgoing(i64 bytes) {
  return {.copy = std::make_unique_for_overwrite<std::byte[]>(bytes), .capacity = bytes, .requests = {}};
}

}  // namespace

MpiMessages::MpiMessages(const MpiComm& comm, const std::vector<int>& nodes, const MpiWorld& world)
    : comm_(comm),
      nodes_(nodes),
      world_(world),
      rank_(comm.rank()),
      // Where there is no core for each rank, one that looks again at once keeps its peer from working.
      patience_{.spins = world.has_core_for_each_rank ? 2000 : 0} {}

Work MpiMessages::send(const Tensor& t, int destination) {
  if (t.bytes() == 0) return {};
  if (goes_by_letter(t.bytes(), destination)) return post(t, destination);
  send_copy(t.raw(), t.bytes(), destination);
  return {};
}

Work MpiMessages::recv(const Tensor& t, int source) {
  if (goes_by_letter(t.bytes(), source)) return await_letter(t, source);
  return Work([in = start_receive(t, source, kTag)]() mutable { in.finish(); });
}

Work MpiMessages::exchange(const Tensor& in, std::span<const Part> send, const Tensor& out,
                           std::span<const Part> receive) {
  const int size = static_cast<int>(nodes_.size());
  const i64 item = size_of(in.dtype());
  std::vector<Incoming> incoming;
  for (int r = 0; r < size; ++r) {
    const Tensor to = out.flat(receive[r].first, receive[r].count);
    if (r == rank_)
      copy_bytes(to.raw(), bytes_of(in) + send[r].first * item, to.bytes());
    else
      incoming.push_back(start_receive(to, r, kExchangeTag));
  }
  std::vector<MPI_Request> requests;
  for (int step = 1; step < size; ++step) {  // each rank begins with another one
    const int r = (rank_ + step) % size;
    in_messages(send[r].count * item, [&](i64 begin, int n) {
      check_mpi(MPI_Isend(bytes_of(in) + send[r].first * item + begin, n, MPI_BYTE, r, kExchangeTag, comm_.get(),
                          &requests.emplace_back()),
                "MPI_Isend");
    });
  }
  return Work([in, incoming = std::move(incoming), requests = std::move(requests), patience = patience_]() mutable {
    for (Incoming& message : incoming) message.finish();
    wait_all(requests, patience);
  });
}

void MpiMessages::finish() {
  for (Outgoing& message : outgoing_) wait_all(message.requests, patience_);
  for (; !posted_.empty(); release_letters()) let_messages_move();
}

bool MpiMessages::is_near(int peer) const {
  return nodes_[peer] == nodes_[rank_];
}

/// Both ranks say the same of a message.
bool MpiMessages::goes_by_letter(i64 bytes, int peer) const {
  return bytes >= kLetterBytes && world_.messages && is_near(peer);
}

/// MPI has the copy on its way when this returns.
void MpiMessages::send_copy(const void* from, i64 bytes, int destination) {
  if (!world_.progress || is_near(destination)) return start_send(room_for(bytes), from, bytes, destination);
  Outgoing message = new_outgoing(bytes);
  start_send(message, from, bytes, destination);
  world_.progress->carry(std::move(message));
}

void MpiMessages::start_send(Outgoing& message, const void* from, i64 bytes, int destination) const {
  std::memcpy(message.copy.get(), from, static_cast<std::size_t>(bytes));
  in_messages(bytes, [&](i64 begin, int n) {
    check_mpi(MPI_Isend(message.copy.get() + begin, n, MPI_BYTE, destination, kTag, comm_.get(),
                        &message.requests.emplace_back()),
              "MPI_Isend");
  });
}

/// That of a message which has arrived, or new.
Outgoing& MpiMessages::room_for(i64 bytes) {
  for (Outgoing& message : outgoing_) {
    if (message.capacity < bytes || !message.is_done()) continue;
    message.requests.clear();
    return message;
  }
  outgoing_.remove_if([](Outgoing& message) { return message.is_done(); });
  return outgoing_.emplace_back(new_outgoing(bytes));
}

MpiMessages::Incoming MpiMessages::start_receive(const Tensor& t, int source, int tag) const {
  Incoming message{.to = t, .source = source, .patience = patience_};
  auto* memory = static_cast<std::byte*>(t.raw());
  in_messages(t.bytes(), [&](i64 begin, int n) {
    check_mpi(MPI_Irecv(memory + begin, n, MPI_BYTE, source, tag, comm_.get(), &message.requests.emplace_back()),
              "MPI_Irecv");
  });
  if (world_.progress && !is_near(source)) message.moves = world_.progress->expect_message();
  return message;
}

void MpiMessages::Incoming::finish() {
  std::vector<MPI_Status> statuses(requests.size());
  wait_all(requests, patience, statuses.data());
  moves = nullptr;
  i64 received = 0;
  for (const MPI_Status& status : statuses) {
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    received += bytes;
  }
  MCPP_CHECK(received == to.bytes(), "rank ", source, " sent ", received, " bytes, expected were ", to.bytes());
}

Work MpiMessages::post(const Tensor& t, int destination) {
  release_letters();
  const SharedArena* arena = static_cast<const CpuDevice&>(t.device()).arena();
  const ArenaName own = arena && arena->contains(t.raw()) ? arena->name() : ArenaName();
  const bool in_place = own.id != 0 && reaches_[{own.id, destination}];
  PeerMessages& messages = *world_.messages;
  Letter& letter = messages.post(t, in_place);
  posted_.push_back({&letter, own.id, destination});
  const LetterCard card = messages.card_of(letter, own);
  send_copy(&card, sizeof(card), destination);
  if (!in_place) return {};
  // Once it was taken, the letter may carry another message, which is none of this one's business.
  const auto is_gone = [&letter, number = letter.number.load()] { return letter.number.load() != number; };
  return Work(
      [&letter, t, is_gone, messages = world_.messages] {
        if (!is_gone()) messages->detach(letter, t);
      },
      [&letter, is_gone, messages = world_.messages] { return is_gone() || PeerMessages::is_taken(letter); });
}

/// Those that were taken.
void MpiMessages::release_letters() {
  std::erase_if(posted_, [this](const Posted& x) {
    if (!PeerMessages::is_taken(*x.letter)) return false;
    if (x.arena != 0) reaches_[{x.arena, x.destination}] = x.letter->reached;
    world_.messages->release(*x.letter);
    return true;
  });
}

Work MpiMessages::await_letter(const Tensor& t, int source) const {
  struct Awaited {
    LetterCard card;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto awaited = std::make_shared<Awaited>();
  check_mpi(MPI_Irecv(&awaited->card, sizeof(LetterCard), MPI_BYTE, source, kTag, comm_.get(), &awaited->request),
            "MPI_Irecv");
  return Work([awaited, to = Tensor(t), source, messages = world_.messages, patience = patience_]() mutable {
    wait_all({&awaited->request, 1}, patience);
    messages->take(awaited->card, to, source);
  });
}

}  // namespace mcpp
