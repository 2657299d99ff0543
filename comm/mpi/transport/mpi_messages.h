// Messages between the ranks of an MPI group: sent by MPI or, if large, through shared memory within a node
// (peer_messages.h) and as offers between nodes.
#pragma once
#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/transport/peer_messages.h"
#include "comm/mpi/transport/progress_thread.h"

namespace mcpp {

// Large inter-node messages, sent directly from their tensors.

/// MPI tags of an offered message and of the receiver's answer. They distinguish concurrent messages between two ranks.
struct OfferTags {
  int message, answer;
};

/// Message sent by rendezvous: the sender offers it, and once the receiver requests it, it is sent directly from the
/// tensor. If the request takes longer than a copy, the tensor is copied, because a send must not wait for its receive.
/// Thread-safe.
class OfferedMessage {
 public:
  OfferedMessage(const Tensor& t, int destination, OfferTags tags, MPI_Comm comm);

  /// Sends the message if it has been requested. Returns true if its tensor is no longer needed.
  bool make_progress();
  /// Waits until the tensor may be modified: the message has left, or was copied before it was requested.
  void wait(ProgressThread& progress, const WaitPolicy& wait_policy);
  /// Releases the tensor without sending it. Call it after progress has stopped.
  void cancel() noexcept { tensor_ = {}; }

 private:
  bool detach_tensor(ProgressThread& progress);
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

/// Requests the message. Called by the receiver.
void request_message(int source, OfferTags tags, MPI_Comm comm, MPI_Request& request);

/// State shared by the groups of a world.
struct MpiWorld {
  bool has_core_per_rank;
  std::shared_ptr<PeerArenas> arenas;
  std::shared_ptr<PeerMessages> messages;    ///< nullptr if the ranks of the node cannot map one another's memory
  std::shared_ptr<ProgressThread> progress;  ///< nullptr on a single node, or if MPI does not allow a second thread

  /// Returns the callback that makes progress while a thread waits.
  std::function<void()> progress_callback() const { return progress ? progress->progress_callback() : nullptr; }
  /// Returns the waiting policy for messages.
  WaitPolicy wait_policy() const {
    return {.spins = spins_of(has_core_per_rank), .progress_callback = progress_callback()};
  }
  /// Returns the number of polls before yielding: 0 without a core per rank, because polling would keep the peer from
  /// running.
  static int spins_of(bool has_core_per_rank) { return has_core_per_rank ? 2000 : 0; }
};

/// Messages of one rank in one group. The contracts are the same as in Communicator.
class MpiMessages {
 public:
  /// nodes[r] is the node of rank r of `comm`.
  MpiMessages(const MpiComm& comm, const std::vector<int>& nodes, const MpiWorld& world);

  Work send(const Tensor& t, int destination);
  Work recv(const Tensor& t, int source);
  /// Implements all_to_all_v(). `wait_policy` is the policy of the waiting thread.
  Work exchange(const Tensor& in, std::span<const Part> send, const Tensor& out, std::span<const Part> receive,
                const WaitPolicy& wait_policy) const;
  /// Waits until all sent messages have left the memory of this rank.
  void finish();

 private:
  /// Message that the receiver copies out of this rank's memory.
  struct PostedMessage {
    MessageSlot* slot;
    u64 arena;  ///< arena of the posted tensor; 0: not mappable by peers
    int destination;
  };
  /// Header sent before an offer: the number of bytes. Its odd size distinguishes it from any tensor message.
  using OfferHeader = std::array<std::byte, sizeof(i64) + 1>;
  /// Keeps an inter-node message progressing until it has arrived. If destroyed earlier, while an exception unwinds the
  /// stack, it stops all progress, because tensors and devices are destroyed next.
  struct ProgressHold {
    std::shared_ptr<ProgressThread> progress;
    std::shared_ptr<void> expected = progress->expect_message();
    bool has_arrived = false;
    ~ProgressHold();
  };
  /// Receive in flight over MPI.
  struct Incoming {
    Tensor to;
    int source;
    WaitPolicy wait_policy;
    std::vector<MPI_Request> requests = {};
    std::vector<i64> expected = {};  ///< expected bytes, by request
    // Offers only: the header, and the MPI request of the answer.
    std::optional<OfferHeader> header = {};
    MPI_Request answer = MPI_REQUEST_NULL;
    std::shared_ptr<ProgressHold> progress_hold = {};  ///< nullptr within a node

    void finish();
    void check_size(std::size_t request, i64 received) const;
  };

  bool is_same_node(int peer) const;
  bool is_sent_through_slot(i64 bytes, int peer) const;
  bool is_offered(i64 bytes, int peer) const;
  Work send_offer(const Tensor& t, int destination);
  Work receive_offer(const Tensor& t, int source);
  Incoming start_receive(const Tensor& t, int source, int tag, const WaitPolicy& wait_policy) const;
  i64 exchange_chunk(int peer) const;
  void send_copy(const void* from, i64 bytes, int destination);
  void start_send(InFlightSend& message, const void* from, i64 bytes, int destination) const;
  InFlightSend& acquire_send_buffer(i64 bytes);
  Work post(const Tensor& t, int destination);
  Work receive_from_slot(const Tensor& t, int source) const;
  void release_slots();

  const MpiComm& comm_;
  const std::vector<int>& nodes_;
  const MpiWorld& world_;
  int rank_;
  WaitPolicy wait_policy_;
  std::list<InFlightSend> in_flight_sends_;
  std::list<PostedMessage> posted_messages_;
  std::map<int, i64> offers_to_, offers_from_;       // number of offers to and from each rank
  std::map<std::pair<u64, int>, bool> is_mappable_;  // indexed by arena and rank: whether that rank can map the arena
};

}  // namespace mcpp
