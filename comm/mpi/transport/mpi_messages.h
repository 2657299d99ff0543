// Messages between the ranks of an MPI group: by MPI, and where they are large, inside a machine by letters
// (peer_messages.h) and between machines by offers (offered_message.h).
#pragma once
#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/transport/offered_message.h"
#include "comm/mpi/transport/peer_messages.h"
#include "comm/mpi/transport/progress_thread.h"

namespace mcpp {

/// What the groups of a world share.
struct MpiWorld {
  bool has_core_for_each_rank;
  std::shared_ptr<PeerArenas> arenas;
  std::shared_ptr<PeerMessages> messages;    ///< null where ranks of the machine cannot map one another's memory
  std::shared_ptr<ProgressThread> progress;  ///< null on one machine, and where MPI allows no second thread

  /// Patience::meanwhile of all that waits.
  std::function<void()> meanwhile() const { return progress ? progress->meanwhile() : nullptr; }
  /// Of one that waits for messages.
  Patience patience() const { return {.spins = spins_of(has_core_for_each_rank), .meanwhile = meanwhile()}; }
  /// Where there is no core for each rank, one that looks again at once keeps its peer from working.
  static int spins_of(bool has_core_for_each_rank) { return has_core_for_each_rank ? 2000 : 0; }
};

/// Those of one rank in one group; as Communicator has it.
class MpiMessages {
 public:
  /// nodes[r]: the node of rank r of `comm`. All outlive this.
  MpiMessages(const MpiComm& comm, const std::vector<int>& nodes, const MpiWorld& world);

  Work send(const Tensor& t, int destination);
  Work recv(const Tensor& t, int source);
  /// all_to_all_v(). patience: of who waits for it.
  Work exchange(const Tensor& in, std::span<const Part> send, const Tensor& out, std::span<const Part> receive,
                const Patience& patience) const;
  /// Waits until what was sent has left this rank's memory.
  void finish();

 private:
  /// A message whose receiver copies it from where this rank has it.
  struct Posted {
    Letter* letter;
    u64 arena;  ///< of its tensor; 0: none that peers could map
    int destination;
  };
  /// What goes before an offer: how many bytes it has. No message of elements is as long, so that neither can be taken
  /// for the other.
  using OfferCard = std::array<std::byte, sizeof(i64) + 1>;
  /// Keeps a message between machines moving until it has come. When this goes before, as an error unwinds the stack,
  /// tensors and devices go next: then nothing more moves.
  struct Moves {
    std::shared_ptr<ProgressThread> progress;
    std::shared_ptr<void> expected = progress->expect_message();
    bool has_come = false;
    ~Moves();
  };
  /// A message that is to come by MPI.
  struct Incoming {
    Tensor to;
    int source;
    Patience patience;
    std::vector<MPI_Request> requests = {};
    std::vector<i64> expected = {};  ///< bytes of each
    // Of an offer: what comes first, and how it was asked for.
    std::optional<OfferCard> card = {};
    MPI_Request question = MPI_REQUEST_NULL;
    std::shared_ptr<Moves> moves = {};  ///< null inside of a machine

    void finish();
    void check_size(std::size_t request, i64 received) const;
  };

  bool is_near(int peer) const;
  bool goes_by_letter(i64 bytes, int peer) const;
  bool is_offered(i64 bytes, int peer) const;
  Work send_offer(const Tensor& t, int destination);
  Work ask_for_offer(const Tensor& t, int source);
  Incoming start_receive(const Tensor& t, int source, int tag, const Patience& patience) const;
  i64 exchange_piece(int peer) const;
  void send_copy(const void* from, i64 bytes, int destination);
  void start_send(Outgoing& message, const void* from, i64 bytes, int destination) const;
  Outgoing& room_for(i64 bytes);
  Work post(const Tensor& t, int destination);
  Work await_letter(const Tensor& t, int source) const;
  void release_letters();

  const MpiComm& comm_;
  const std::vector<int>& nodes_;
  const MpiWorld& world_;
  int rank_;
  Patience patience_;
  std::list<Outgoing> outgoing_;
  std::list<Posted> posted_;
  std::map<int, i64> offers_to_, offers_from_;   // by rank, how many there were
  std::map<std::pair<u64, int>, bool> reaches_;  // by arena and rank: whether it said that it can map the arena
};

}  // namespace mcpp
