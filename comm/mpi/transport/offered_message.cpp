#include "comm/mpi/transport/offered_message.h"

#include <chrono>
#include <utility>

#include "comm/copy_bytes.h"

namespace mcpp {
namespace {

/// Estimated copy bandwidth. Waiting for the receiver as long as a copy takes costs at most twice the copy.
constexpr double kCopiedPerSecond = 4e9;

std::chrono::duration<double> time_of_copy(i64 bytes) {
  return std::chrono::duration<double>(static_cast<double>(bytes) / kCopiedPerSecond);
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
  const auto end = std::chrono::steady_clock::now() + time_of_copy(bytes_);
  for (PollLoop poll_loop(wait_policy); !make_progress(); poll_loop.pause())
    if (std::chrono::steady_clock::now() > end && take_back(progress)) return;
}

/// Copies the message so that its tensor may change. Returns false if the message is already in flight.
bool OfferedMessage::take_back(ProgressThread& progress) {
  Tensor tensor;
  MPI_Request answer = MPI_REQUEST_NULL;
  {
    const std::lock_guard lock(mutex_);
    if (!requests_.empty()) return false;
    tensor = std::exchange(tensor_, {});
    answer = std::exchange(answer_, MPI_REQUEST_NULL);
  }
  if (!tensor.defined()) return true;  // it has been sent
  InFlightSend message = progress.acquire_send_buffer(bytes_);
  copy_bytes(message.copy.get(), tensor.raw(), bytes_);
  start(message.copy.get(), message.requests);
  message.requests.push_back(answer);
  progress.keep_until_sent(std::move(message));
  return true;
}

void OfferedMessage::start(const std::byte* data, std::vector<MPI_Request>& requests) const {
  in_messages(bytes_, [&](i64 begin, int n) {
    check_mpi(MPI_Isend(data + begin, n, MPI_BYTE, destination_, tag_, comm_, &requests.emplace_back()), "MPI_Isend");
  });
}

Work offer(std::shared_ptr<OfferedMessage> message, std::shared_ptr<ProgressThread> progress,
           const WaitPolicy& wait_policy) {
  struct Offered {
    std::shared_ptr<OfferedMessage> message;
    std::shared_ptr<ProgressThread> progress;
    bool was_waited_for = false;
    ~Offered() {
      if (was_waited_for) return;
      progress->cancel();
      message->cancel();
    }
  };
  if (message->make_progress()) return {};
  progress->keep_until_sent([message] { return message->make_progress(); });
  const std::shared_ptr<Offered> offered(new Offered{message, std::move(progress)});
  return Work(
      [offered, wait_policy] {
        offered->message->wait(*offered->progress, wait_policy);
        offered->was_waited_for = true;
      },
      [message] { return message->make_progress(); });  // may be queried after the thread has ended
}

void ask_for_message(int source, OfferTags tags, MPI_Comm comm, MPI_Request& request) {
  check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, source, tags.answer, comm, &request), "MPI_Isend");
}

}  // namespace mcpp
