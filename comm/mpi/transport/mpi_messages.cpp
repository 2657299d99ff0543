#include "comm/mpi/transport/mpi_messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "comm/checks.h"
#include "comm/copy_bytes.h"
#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {
namespace {

/// Estimated copy bandwidth. Waiting for the receiver as long as a copy takes costs at most twice the copy.
constexpr double kOfferCopyBytesPerSecond = 4e9;

std::chrono::duration<double> copy_time(i64 bytes) {
  return std::chrono::duration<double>(static_cast<double>(bytes) / kOfferCopyBytesPerSecond);
}

}  // namespace

OfferedMessage::OfferedMessage(const Tensor& t, int destination, OfferTags tags, MPI_Comm comm)
    : comm_(comm), destination_(destination), tag_(tags.message), bytes_(t.bytes()), tensor_(t) {
  check_mpi(MPI_Irecv(nullptr, 0, MPI_BYTE, destination, tags.answer, comm, &answer_), "MPI_Irecv");
}

bool OfferedMessage::make_progress() {
  const std::lock_guard lock(mutex_);
  if (!tensor_.defined()) return true;
  if (requests_.empty()) {
    if (!are_complete({&answer_, 1})) return false;
    start(static_cast<const std::byte*>(tensor_.raw()), requests_);
  }
  if (!are_complete(requests_)) return false;
  tensor_ = {};
  return true;
}

void OfferedMessage::wait(ProgressThread& progress, const WaitPolicy& wait_policy) {
  const auto polling_hold = progress.hold_polling();
  const auto end = std::chrono::steady_clock::now() + copy_time(bytes_);
  for (PollLoop poll_loop(wait_policy); !make_progress(); poll_loop.pause())
    if (std::chrono::steady_clock::now() > end && detach_tensor(progress)) return;
}

/// Copies the message so that its tensor may change. Returns false if the message is already in flight.
bool OfferedMessage::detach_tensor(ProgressThread& progress) {
  Tensor tensor;
  MPI_Request answer = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    if (!requests_.empty()) return false;
    tensor = std::exchange(tensor_, {});
    answer = std::exchange(answer_, MPI_REQUEST_NULL);
  }
  if (!tensor.defined()) return true;  // already sent
  InFlightSend message = progress.acquire_send_buffer(bytes_);
  copy_bytes(message.copy.get(), tensor.raw(), bytes_);
  start(message.copy.get(), message.requests);
  message.requests.push_back(answer);
  progress.keep_until_sent(std::move(message));
  return true;
}

void OfferedMessage::start(const std::byte* data, std::vector<MPI_Request>& requests) const {
  for_each_message(bytes_, [&](i64 begin, int n) {
    check_mpi(MPI_Isend(data + begin, n, MPI_BYTE, destination_, tag_, comm_, &requests.emplace_back()), "MPI_Isend");
  });
}

Work offer(std::shared_ptr<OfferedMessage> message, std::shared_ptr<ProgressThread> progress,
           const WaitPolicy& wait_policy) {
  struct PendingOffer {
    std::shared_ptr<OfferedMessage> message;
    std::shared_ptr<ProgressThread> progress;
    bool was_waited_for = false;
    ~PendingOffer() {
      if (was_waited_for) return;
      progress->cancel();
      message->cancel();
    }
  };
  if (message->make_progress()) return {};
  progress->keep_until_sent([message] { return message->make_progress(); });
  const std::shared_ptr<PendingOffer> offered(new PendingOffer{message, std::move(progress)});
  return Work(
      [offered, wait_policy] {
        offered->message->wait(*offered->progress, wait_policy);
        offered->was_waited_for = true;
      },
      [message] { return message->make_progress(); });  // may be queried after the thread has ended
}

void request_message(int source, OfferTags tags, MPI_Comm comm, MPI_Request& request) {
  check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, source, tags.answer, comm, &request), "MPI_Isend");
}

namespace {

/// Minimum size of messages within a node that are sent through shared memory: saving a copy outweighs the lookup.
constexpr i64 kMinSharedBytes = 32 << 10;

/// Messages of at least this size between nodes are offered to the receiver before they are copied.
constexpr i64 kMinOfferBytes = i64{1} << 20;
OfferTags tags_of_offer(i64 number) {
  const int tag = mpi_tag::kFirstOffer + static_cast<int>(number % mpi_tag::kOffers);
  return {.message = tag, .answer = tag + mpi_tag::kOffers};
}

/// Message to one rank in an exchange, or a chunk of it.
struct ExchangeChunk {
  const std::byte* from;
  int bytes, to;

  template <class Send>
  void start(Send* send, MPI_Comm comm, MPI_Request& request) const {
    check_mpi(send(from, bytes, MPI_BYTE, to, mpi_tag::kExchange, comm, &request), "MPI_Isend");
  }
};

}  // namespace

MpiMessages::MpiMessages(const MpiComm& comm, const std::vector<int>& nodes, const MpiWorld& world)
    : comm_(comm), nodes_(nodes), world_(world), rank_(comm.rank()), wait_policy_(world.wait_policy()) {}

Work MpiMessages::send(const Tensor& t, int destination) {
  if (t.bytes() == 0) return {};
  if (is_sent_through_slot(t.bytes(), destination)) return post(t, destination);
  if (is_offered(t.bytes(), destination)) return send_offer(t, destination);
  send_copy(t.raw(), t.bytes(), destination);
  return {};
}

Work MpiMessages::recv(const Tensor& t, int source) {
  if (is_sent_through_slot(t.bytes(), source)) return receive_from_slot(t, source);
  if (is_offered(t.bytes(), source)) return receive_offer(t, source);
  return Work([in = start_receive(t, source, mpi_tag::kMessage, wait_policy_)]() mutable { in.finish(); });
}

/// Between nodes, sends chunks of the eager size, because the handshakes of larger messages are queued behind data of
/// other messages. The first chunk for each rank is synchronous: its completion shows that the receiver has posted its
/// buffers for the rest.
Work MpiMessages::exchange(const Tensor& in, std::span<const Part> send, const Tensor& out,
                           std::span<const Part> receive, const WaitPolicy& wait_policy) const {
  const int size = static_cast<int>(nodes_.size());
  std::vector<Incoming> incoming;
  for (int r = 0; r < size; ++r) {
    const Tensor to = out.flat(receive[r].first, receive[r].count);
    if (r == rank_)
      copy_bytes(to.raw(), in.flat(send[r].first, send[r].count).raw(), to.bytes());
    else
      incoming.push_back(start_receive(to, r, mpi_tag::kExchange, wait_policy));
  }
  std::vector<MPI_Request> requests;
  std::vector<ExchangeChunk> rest;
  for (int step = 1; step < size; ++step) {  // staggered so that ranks start with different peers
    const int r = (rank_ + step) % size;
    const Tensor from = in.flat(send[r].first, send[r].count);
    const auto send_chunk = [&](i64 begin, int n) {
      const ExchangeChunk chunk{first_byte(from) + begin, n, r};
      if (begin == 0 || is_same_node(r))
        chunk.start(n < from.bytes() ? MPI_Issend : MPI_Isend, comm_.get(), requests.emplace_back());
      else
        rest.push_back(chunk);
    };
    for_each_message(from.bytes(), send_chunk, exchange_chunk(r));
  }
  return Work([in, incoming = std::move(incoming), requests = std::move(requests), rest = std::move(rest),
               comm = comm_.get(), wait_policy]() mutable {
    if (!rest.empty()) wait_all(requests, wait_policy);
    for (const ExchangeChunk& chunk : rest) chunk.start(MPI_Isend, comm, requests.emplace_back());
    for (Incoming& message : incoming) message.finish();
    wait_all(requests, wait_policy);
  });
}

void MpiMessages::finish() {
  for (InFlightSend& message : in_flight_sends_) wait_all(message.requests, wait_policy_);
  for (PollLoop poll_loop(wait_policy_); !posted_messages_.empty(); release_slots()) {
    drive_mpi_progress();
    poll_loop.pause();
  }
}

bool MpiMessages::is_same_node(int peer) const {
  return nodes_[peer] == nodes_[rank_];
}

/// Returns the maximum message size in an exchange with `peer`.
i64 MpiMessages::exchange_chunk(int peer) const {
  return is_same_node(peer) ? kMaxMessageBytes : kEagerBytes;
}

/// Returns true if the message is sent through shared memory. Sender and receiver agree.
bool MpiMessages::is_sent_through_slot(i64 bytes, int peer) const {
  return bytes >= kMinSharedBytes && world_.messages && is_same_node(peer);
}

/// Returns true if the message is sent as an offer. Sender and receiver agree.
bool MpiMessages::is_offered(i64 bytes, int peer) const {
  return bytes >= kMinOfferBytes && world_.progress && !is_same_node(peer);
}

/// Sends the size first, in message order, so that the receiver detects a mismatch.
Work MpiMessages::send_offer(const Tensor& t, int destination) {
  const i64 bytes = t.bytes();
  OfferHeader header{};
  std::memcpy(header.data(), &bytes, sizeof(bytes));
  send_copy(header.data(), header.size(), destination);
  const OfferTags tags = tags_of_offer(offers_to_[destination]++);
  return offer(std::make_shared<OfferedMessage>(t, destination, tags, comm_.get()), world_.progress, wait_policy_);
}

Work MpiMessages::receive_offer(const Tensor& t, int source) {
  const OfferTags tags = tags_of_offer(offers_from_[source]++);
  auto in = std::make_shared<Incoming>(start_receive(t, source, tags.message, wait_policy_));
  OfferHeader& header = in->header.emplace();
  in->expected.insert(in->expected.begin(), sizeof(header));
  in->requests.insert(in->requests.begin(), MPI_REQUEST_NULL);
  check_mpi(
      MPI_Irecv(header.data(), sizeof(header), MPI_BYTE, source, mpi_tag::kMessage, comm_.get(), &in->requests.front()),
      "MPI_Irecv");
  request_message(source, tags, comm_.get(), in->answer);
  return Work([in] {
    in->finish();
    wait_all({&in->answer, 1}, in->wait_policy);
  });
}

/// Hands a copy to MPI and does not wait for the receiver.
void MpiMessages::send_copy(const void* from, i64 bytes, int destination) {
  if (!world_.progress || is_same_node(destination))
    return start_send(acquire_send_buffer(bytes), from, bytes, destination);
  InFlightSend message = world_.progress->acquire_send_buffer(bytes);
  start_send(message, from, bytes, destination);
  world_.progress->keep_until_sent(std::move(message));
}

void MpiMessages::start_send(InFlightSend& message, const void* from, i64 bytes, int destination) const {
  copy_bytes(message.copy.get(), from, bytes);
  for_each_message(bytes, [&](i64 begin, int n) {
    check_mpi(MPI_Isend(message.copy.get() + begin, n, MPI_BYTE, destination, mpi_tag::kMessage, comm_.get(),
                        &message.requests.emplace_back()),
              "MPI_Isend");
  });
}

/// Returns the buffer of a completed message, or a new one.
InFlightSend& MpiMessages::acquire_send_buffer(i64 bytes) {
  for (InFlightSend& message : in_flight_sends_) {
    if (message.capacity >= bytes && message.is_done()) return message;
  }
  in_flight_sends_.remove_if([](InFlightSend& message) { return message.is_done(); });
  return in_flight_sends_.emplace_back(bytes);
}

MpiMessages::Incoming MpiMessages::start_receive(const Tensor& t, int source, int tag,
                                                 const WaitPolicy& wait_policy) const {
  Incoming message{.to = t, .source = source, .wait_policy = wait_policy};
  auto* memory = static_cast<std::byte*>(t.raw());
  const auto receive = [&](i64 begin, int n) {
    message.expected.push_back(n);
    check_mpi(MPI_Irecv(memory + begin, n, MPI_BYTE, source, tag, comm_.get(), &message.requests.emplace_back()),
              "MPI_Irecv");
  };
  for_each_message(t.bytes(), receive, tag == mpi_tag::kExchange ? exchange_chunk(source) : kMaxMessageBytes);
  if (world_.progress && !is_same_node(source)) message.progress_hold.reset(new ProgressHold{world_.progress});
  return message;
}

MpiMessages::ProgressHold::~ProgressHold() {
  if (!has_arrived) progress->cancel();
}

void MpiMessages::Incoming::finish() {
  const auto polling_hold = progress_hold ? progress_hold->progress->hold_polling() : nullptr;
  // Waits in order, because after a mismatched message the remaining messages may never arrive.
  for (std::size_t i = 0; i < requests.size(); ++i) {
    MPI_Status status;
    wait_all({&requests[i], 1}, wait_policy, &status);
    int received = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
    check_size(i, received);
  }
  if (progress_hold) progress_hold->has_arrived = true;
  progress_hold = nullptr;
}

void MpiMessages::Incoming::check_size(std::size_t request, i64 received) const {
  const bool is_offer = request == 0 && header, has_header = request == 0 && received == sizeof(OfferHeader);
  const i64 expected_bytes = is_offer ? to.bytes() : expected[request];
  i64 sent = received;
  if (has_header) std::memcpy(&sent, is_offer ? header->data() : to.raw(), sizeof(sent));
  MCPP_CHECK(sent == expected_bytes && has_header == is_offer, "rank ", source, " sent ", sent, " bytes, expected ",
             expected_bytes, " of ", to.bytes());
}

Work MpiMessages::post(const Tensor& t, int destination) {
  release_slots();
  const SharedArena* arena = static_cast<const CpuDevice&>(t.device()).arena();
  const ArenaName own = arena && arena->contains(t.raw()) ? arena->name() : ArenaName();
  const bool is_in_place = own.id != 0 && is_mappable_[{own.id, destination}];
  PeerMessages& messages = *world_.messages;
  MessageSlot& slot = messages.post(t, is_in_place);
  posted_messages_.push_back({&slot, own.id, destination});
  const MessageHeader header = messages.header_of(slot, own);
  send_copy(&header, sizeof(header), destination);
  if (!is_in_place) return {};
  // A received slot may be reused for a different message; its number distinguishes them.
  const auto is_reused = [&slot, number = slot.number.load()] { return slot.number.load() != number; };
  return Work(
      [&slot, t, is_reused, messages = world_.messages] {
        if (!is_reused()) messages->detach(slot, t);
      },
      [&slot, is_reused, messages = world_.messages] { return is_reused() || PeerMessages::is_received(slot); });
}

/// Releases the slots of received messages.
void MpiMessages::release_slots() {
  std::erase_if(posted_messages_, [this](const PostedMessage& posted) {
    if (!PeerMessages::is_received(*posted.slot)) return false;
    if (posted.arena != 0) is_mappable_[{posted.arena, posted.destination}] = posted.slot->is_next_arena_mappable;
    world_.messages->release(*posted.slot);
    return true;
  });
}

Work MpiMessages::receive_from_slot(const Tensor& t, int source) const {
  struct Awaited {
    MessageHeader header;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  const auto awaited = std::make_shared<Awaited>();
  check_mpi(MPI_Irecv(&awaited->header, sizeof(MessageHeader), MPI_BYTE, source, mpi_tag::kMessage, comm_.get(),
                      &awaited->request),
            "MPI_Irecv");
  return Work([awaited, to = Tensor(t), source, messages = world_.messages, wait_policy = wait_policy_]() mutable {
    wait_all({&awaited->request, 1}, wait_policy);
    messages->receive(awaited->header, to, source);
  });
}

}  // namespace mcpp
