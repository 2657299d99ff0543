// Large messages between machines, which leave from their tensors.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "comm/mpi/transport/progress_thread.h"

namespace mcpp {

/// Of one message between two ranks, and of its receiver's answer, so that neither can be taken for that of another.
struct OfferTags {
  int message, answer;
};

/// A message that its sender offers and its receiver asks for. Then the tensor itself is sent, as MPI takes it at once;
/// what nobody asks for while a copy of it could be made is copied, as a send never waits for its receive. For any
/// thread.
class OfferedMessage {
 public:
  OfferedMessage(const Tensor& t, int destination, OfferTags tags, MPI_Comm comm);

  /// Sends it once it was asked for. Whether its tensor is no longer needed.
  bool move_on();
  /// Waits until the tensor may change: it has left, or was copied before anybody asked for it.
  void wait(ProgressThread& progress, const Patience& patience);
  /// Lets the tensor go, when nothing of this rank moves any more.
  void give_up() noexcept { tensor_ = {}; }

 private:
  bool take_back(ProgressThread& progress);
  void start(const std::byte* data, std::vector<MPI_Request>& requests) const;

  MPI_Comm comm_;
  int destination_, tag_;
  i64 bytes_;
  std::mutex mutex_;  // of what follows
  Tensor tensor_;     // undefined once it has left, or was copied
  MPI_Request answer_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> requests_;  // empty until it was asked for
};

/// Work of Communicator::send(). As an error unwinds the stack, tensors and devices go next: then nothing more leaves.
Work offer(std::shared_ptr<OfferedMessage> message, std::shared_ptr<ProgressThread> progress, const Patience& patience);

/// The receiver's side: says that it is there for the message.
void ask_for_message(int source, OfferTags tags, MPI_Comm comm, MPI_Request& request);

}  // namespace mcpp
