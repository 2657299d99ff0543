// Large inter-node messages sent directly from their tensors.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "comm/mpi/transport/progress_thread.h"

namespace mcpp {

/// Tags of one message between two ranks and of its receiver's answer, which keep concurrent messages apart.
struct OfferTags {
  int message, answer;
};

/// Message that its sender offers and its receiver requests. Once requested, it is sent directly from the tensor. If it
/// is not requested within the time of a copy, it is copied, because a send must not wait for its receive. Thread-safe.
class OfferedMessage {
 public:
  OfferedMessage(const Tensor& t, int destination, OfferTags tags, MPI_Comm comm);

  /// Sends the message if it has been requested. Returns true if its tensor is no longer needed.
  bool make_progress();
  /// Waits until the tensor may be modified: the message has left, or was copied before it was requested.
  void wait(ProgressThread& progress, const WaitPolicy& wait_policy);
  /// Drops the tensor once this rank no longer makes progress.
  void cancel() noexcept { tensor_ = {}; }

 private:
  bool take_back(ProgressThread& progress);
  void start(const std::byte* data, std::vector<MPI_Request>& requests) const;

  MPI_Comm comm_;
  int destination_, tag_;
  i64 bytes_;
  std::mutex mutex_;  // guards the members below
  Tensor tensor_;     // undefined once sent or copied
  MPI_Request answer_ = MPI_REQUEST_NULL;
  std::vector<MPI_Request> requests_;  // empty until requested
};

/// Returns the Work of Communicator::send(). If destroyed while an exception unwinds the stack, it stops sending,
/// because tensors and devices are destroyed next.
Work offer(std::shared_ptr<OfferedMessage> message, std::shared_ptr<ProgressThread> progress,
           const WaitPolicy& wait_policy);

/// Requests the message, on the receiver's side.
void ask_for_message(int source, OfferTags tags, MPI_Comm comm, MPI_Request& request);

}  // namespace mcpp
