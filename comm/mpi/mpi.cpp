#include "comm/mpi/mpi.h"

#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <vector>

#include "comm/checks.h"
#include "comm/copy_bytes.h"
#include "comm/mpi/mpi_board.h"
#include "comm/mpi/mpi_direct.h"
#include "comm/mpi/mpi_reduce.h"
#include "comm/mpi/peer_messages.h"

namespace mcpp {
namespace {

constexpr int kTag = 0, kExchangeTag = 1;
/// Smaller tensors are rarely where peers can map them, and to ask costs more than to copy.
constexpr i64 kDirectBytes = SharedArena::kSmallestBlock;
/// From here on one copy is worth more than the way to find it.
constexpr i64 kLetterBytes = 32 << 10;

/// A message that was copied out of its tensor and is on its way. The copy is no tensor: the group may outlive the
/// device.
struct Outgoing {
  std::unique_ptr<std::byte[]> copy;
  i64 capacity;
  std::vector<MPI_Request> requests;

  bool is_done() {
    int done = 0;
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    return done != 0;
  }
};

/// Starts `call(request)` and waits for it.
template <class Call>
void complete(const char* name, const Call& call) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(call(&request), name);
  wait_all({&request, 1});
}

/// What the groups of a world share.
struct World {
  bool may_spin;  ///< as of SharedWindow
  std::shared_ptr<PeerArenas> arenas;
  std::shared_ptr<PeerMessages> messages;  ///< null where ranks of the machine cannot map one another's memory
};

/// A message whose receiver copies it from where this rank has it.
struct Posted {
  Letter* letter;
  u64 arena;  ///< of its tensor; 0: none that peers could map
  int destination;
};

/// A message that is to come.
struct Incoming {
  Tensor to;
  std::vector<MPI_Request> requests;
  int source;
};

std::vector<int> gather_numbers(int own, const MpiComm& comm) {
  std::vector<int> all(comm.size());
  complete("MPI_Iallgather", [&](MPI_Request* request) {
    return MPI_Iallgather(&own, 1, MPI_INT, all.data(), 1, MPI_INT, comm.get(), request);
  });
  return all;
}

/// x, or a copy of it in memory that peers may map, where the device has some: small blocks of its own are elsewhere.
Tensor where_peers_reach(const Tensor& x) {
  const SharedArena* arena = static_cast<const CpuDevice&>(x.device()).arena();
  if (!arena || arena->contains(x.raw())) return x;
  const i64 room = kDirectBytes / size_of(x.dtype());
  Tensor copy = Tensor::empty({std::max(room, x.numel())}, x.dtype(), x.device(), MemoryClass::Workspace);
  copy_bytes(copy.raw(), x.raw(), x.bytes());
  return copy;
}

class MpiCommunicator final : public Communicator {
 public:
  /// node: of this rank.
  MpiCommunicator(MpiComm comm, int node, World world)
      : comm_(std::move(comm)), rank_(comm_.rank()), nodes_(gather_numbers(node, comm_)), world_(std::move(world)) {}
  ~MpiCommunicator() override {
    if (!can_free()) return;
    for (Outgoing& message : outgoing_) wait_all(message.requests);
    for (; !posted_.empty(); release_letters()) let_messages_move();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(nodes_.size()); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    check_on_cpu(t);
    if (t.numel() == 0 || size() == 1) return {};
    if (!directly(t.bytes(), [&](DirectCollectives& node) { return node.all_reduce(op, t); }))
      reducer().all_reduce(op, t.dtype(), bytes_of(t), t.numel());
    return {};
  }

  Work all_gather(const Tensor& shard, Tensor& full) override {
    check_shard(shard, full, *this);
    const i64 bytes = shard.bytes();
    if (bytes == 0 || size() == 1) return copy(shard, full);
    if (directly(bytes, [&](DirectCollectives& node) { return node.all_gather(shard, full); })) return {};
    if (reducer().on_one_node()) {
      reducer().all_gather(bytes_of(shard), bytes_of(full), bytes);
      return {};
    }
    Tensor own = full.view({size(), -1}).slice(rank_, rank_ + 1);
    copy(shard, own);
    in_messages(bytes, [&](i64 begin, int n) {
      const MpiPart part(n, bytes);
      complete("MPI_Iallgather", [&](MPI_Request* request) {
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes_of(full) + begin, 1, part.get(), comm_.get(),
                              request);
      });
    });
    return {};
  }

  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    check_shard(shard, full, *this);
    if (shard.numel() == 0 || size() == 1) return copy(full, shard);
    if (!directly(shard.bytes(), [&](DirectCollectives& node) { return node.reduce_scatter(full, shard); }))
      reducer().reduce_scatter(full.dtype(), bytes_of(full), bytes_of(shard), shard.numel());
    return {};
  }

  Work broadcast(Tensor& t, int root) override {
    check_on_cpu(t);
    check_root(root, *this);
    if (directly(t.bytes(), [&](DirectCollectives& node) { return node.broadcast(t, root); })) return {};
    in_messages(t.bytes(), [&](i64 begin, int n) {
      complete("MPI_Ibcast", [&](MPI_Request* request) {
        return MPI_Ibcast(bytes_of(t) + begin, n, MPI_BYTE, root, comm_.get(), request);
      });
    });
    return {};
  }

  Work all_to_all(const Tensor& in, Tensor& out) override {
    check_exchange(in, out, *this);
    const i64 bytes = in.bytes() / size();
    if (directly(bytes, [&](DirectCollectives& node) { return node.all_to_all(in, out); })) return {};
    in_messages(bytes, [&](i64 begin, int n) {
      const MpiPart part(n, bytes);
      complete("MPI_Ialltoall", [&](MPI_Request* request) {
        return MPI_Ialltoall(bytes_of(in) + begin, 1, part.get(), bytes_of(out) + begin, 1, part.get(), comm_.get(),
                             request);
      });
    });
    return {};
  }

  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_on_cpu(in);
    check_on_cpu(out);
    check_exchange(in, send, out, receive, *this);
    const auto exchange = [&](DirectCollectives& node) {
      return node.all_to_all_v(where_peers_reach(in), send, out, receive);
    };
    // Whatever the size: ranks have different ones.
    if (directly(kDirectBytes, exchange)) return {};
    return exchange_messages(in, send, out, receive);
  }

  Work send(const Tensor& t, int destination) override {
    check_on_cpu(t);
    check_peer(destination, *this);
    if (t.bytes() == 0) return {};
    if (goes_by_letter(t.bytes(), destination)) return post(t, destination);
    send_copy(t.raw(), t.bytes(), destination);
    return {};
  }

  Work recv(Tensor& t, int source) override {
    check_on_cpu(t);
    check_peer(source, *this);
    if (goes_by_letter(t.bytes(), source)) return await_letter(t, source);
    return Work(
        [t, requests = start_receive(t, source, kTag), source]() mutable { finish_receive(t, requests, source); });
  }

  void barrier() override {
    complete("MPI_Ibarrier", [&](MPI_Request* request) { return MPI_Ibarrier(comm_.get(), request); });
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_color(color);
    return std::make_unique<MpiCommunicator>(MpiComm::split(comm_.get(), color, key), nodes_[rank_], world_);
  }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static std::byte* bytes_of(const Tensor& t) { return static_cast<std::byte*>(t.raw()); }
  static Work copy(const Tensor& from, Tensor& to) {
    copy_bytes(to.raw(), from.raw(), from.bytes());
    return {};
  }

  Work exchange_messages(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) {
    const i64 item = size_of(in.dtype());
    std::vector<Incoming> incoming;
    for (int r = 0; r < size(); ++r) {
      Tensor to = out.flat(receive[r].first, receive[r].count);
      if (r == rank_)
        copy(in.flat(send[r].first, send[r].count), to);
      else
        incoming.push_back({to, start_receive(to, r, kExchangeTag), r});
    }
    std::vector<MPI_Request> requests;
    for (int step = 1; step < size(); ++step) {  // each rank begins with another one
      const int r = (rank_ + step) % size();
      in_messages(send[r].count * item, [&](i64 begin, int n) {
        check_mpi(MPI_Isend(bytes_of(in) + send[r].first * item + begin, n, MPI_BYTE, r, kExchangeTag, comm_.get(),
                            &requests.emplace_back()),
                  "MPI_Isend");
      });
    }
    return Work([in, incoming = std::move(incoming), requests = std::move(requests)]() mutable {
      for (Incoming& x : incoming) finish_receive(x.to, x.requests, x.source);
      wait_all(requests);
    });
  }

  /// MPI has the copy on its way when this returns.
  void send_copy(const void* from, i64 bytes, int destination) {
    Outgoing& message = new_message(bytes);
    std::memcpy(message.copy.get(), from, static_cast<std::size_t>(bytes));
    in_messages(bytes, [&](i64 begin, int n) {
      check_mpi(MPI_Isend(message.copy.get() + begin, n, MPI_BYTE, destination, kTag, comm_.get(),
                          &message.requests.emplace_back()),
                "MPI_Isend");
    });
  }

  /// Both ranks say the same of a message.
  bool goes_by_letter(i64 bytes, int peer) const {
    return bytes >= kLetterBytes && world_.messages && nodes_[peer] == nodes_[rank_];
  }
  Work post(const Tensor& t, int destination) {
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
    return Work([&letter, t, messages = world_.messages] { messages->settle(letter, t); },
                [&letter, number = letter.number.load(), messages = world_.messages] {
                  return letter.number.load() != number || PeerMessages::is_taken(letter);
                });
  }
  /// Those that were taken.
  void release_letters() {
    std::erase_if(posted_, [this](const Posted& x) {
      if (!PeerMessages::is_taken(*x.letter)) return false;
      if (x.arena != 0) reaches_[{x.arena, x.destination}] = x.letter->reached;
      world_.messages->release(*x.letter);
      return true;
    });
  }
  Work await_letter(const Tensor& t, int source) const {
    struct Awaited {
      LetterCard card;
      MPI_Request request = MPI_REQUEST_NULL;
    };
    const auto awaited = std::make_shared<Awaited>();
    check_mpi(MPI_Irecv(&awaited->card, sizeof(LetterCard), MPI_BYTE, source, kTag, comm_.get(), &awaited->request),
              "MPI_Irecv");
    return Work([awaited, to = Tensor(t), source, messages = world_.messages]() mutable {
      wait_all({&awaited->request, 1});
      messages->take(awaited->card, to, source);
    });
  }

  /// Room for a message: that of one which has arrived, or new.
  Outgoing& new_message(i64 bytes) {
    for (Outgoing& message : outgoing_) {
      if (message.capacity < bytes || !message.is_done()) continue;
      message.requests.clear();
      return message;
    }
    outgoing_.remove_if([](Outgoing& message) { return message.is_done(); });
    return outgoing_.emplace_back(Outgoing{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes, {}});
  }

  std::vector<MPI_Request> start_receive(const Tensor& t, int source, int tag) const {
    std::vector<MPI_Request> requests;
    in_messages(t.bytes(), [&](i64 begin, int n) {
      check_mpi(MPI_Irecv(bytes_of(t) + begin, n, MPI_BYTE, source, tag, comm_.get(), &requests.emplace_back()),
                "MPI_Irecv");
    });
    return requests;
  }
  static void finish_receive(const Tensor& t, std::vector<MPI_Request>& requests, int source) {
    std::vector<MPI_Status> statuses(requests.size());
    wait_all(requests, statuses.data());
    i64 received = 0;
    for (const MPI_Status& status : statuses) {
      int bytes = 0;
      check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      received += bytes;
    }
    MCPP_CHECK(received == t.bytes(), "rank ", source, " sent ", received, " bytes, expected were ", t.bytes());
  }

  /// Made when first needed: many groups only pass messages.
  NodeReducer& reducer() {
    if (!reducer_) reducer_ = std::make_unique<NodeReducer>(comm_, nodes_, world_.may_spin);
    return *reducer_;
  }
  /// Whether `call` did an operation on parts of so many bytes with tensors in place.
  template <class Call>
  bool directly(i64 bytes, const Call& call) {
    if (bytes < kDirectBytes || size() == 1 || !reducer().on_one_node()) return false;
    if (!direct_) direct_ = std::make_unique<DirectCollectives>(reducer().window(), *world_.arenas);
    return call(*direct_);
  }

  MpiComm comm_;
  int rank_;
  std::vector<int> nodes_;  // the node of each rank
  World world_;
  std::unique_ptr<NodeReducer> reducer_;
  std::unique_ptr<DirectCollectives> direct_;
  std::list<Outgoing> outgoing_;
  std::list<Posted> posted_;
  std::map<std::pair<u64, int>, bool> reaches_;  // by arena and rank: whether it said that it can map the arena
};

}  // namespace

MpiSession::MpiSession(const Launcher& launcher) {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MCPP_CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI library does not allow calls from several threads");
  try {
    launcher.check(size());
  } catch (...) {
    MPI_Finalize();  // nobody communicated yet: this world can end in good order
    throw;
  }
  machine_ = find_machine();
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::Internal));
  MPI_Finalize();
}

int MpiSession::rank() const {
  return rank_in(MPI_COMM_WORLD);
}

int MpiSession::size() const {
  return ranks_of(MPI_COMM_WORLD);
}

std::unique_ptr<Communicator> MpiSession::world(const std::function<int(int rank)>& node_of) const {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  MpiComm world(copy);
  const int node = node_of ? node_of(world.rank()) : machine_.node();
  const auto arenas = std::make_shared<PeerArenas>();
  auto messages = PeerMessages::create(MpiComm::split(world.get(), node, world.rank()), arenas);
  return std::make_unique<MpiCommunicator>(std::move(world), node,
                                           World{machine_.has_core_for_each_rank(), arenas, std::move(messages)});
}

std::unique_ptr<StatusBoard> MpiSession::status_board() const {
  return make_status_board();
}

void MpiSession::try_abort(int exit_code) noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

void MpiSession::abort(int exit_code) const noexcept {
  try_abort(exit_code);
  std::_Exit(exit_code);
}

}  // namespace mcpp
