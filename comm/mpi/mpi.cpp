#include "comm/mpi/mpi.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "comm/checks.h"
#include "comm/copy_bytes.h"
#include "comm/mpi/mpi_gather.h"
#include "comm/mpi/mpi_reduce.h"
#include "comm/mpi/transport/mpi_calls.h"
#include "comm/mpi/transport/mpi_direct.h"
#include "comm/mpi/transport/mpi_messages.h"

namespace mcpp {
namespace {

/// Returns the number of cores on which any rank of `node` may run.
int usable_cores(const MpiComm& node) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  ::sched_getaffinity(0, sizeof(cores), &cores);  // fails if cpu_set_t is too small: the set then stays empty
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &cores, sizeof(cores), MPI_BYTE, MPI_BOR, node.get()), "MPI_Allreduce");
  return std::max(1, CPU_COUNT(&cores));
}

}  // namespace

NodeInfo query_node_info() {
  const int rank = comm_rank(MPI_COMM_WORLD);
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  const MpiComm node(shared);
  NodeInfo node_info{.ranks = std::vector<int>(node.size()), .cores = usable_cores(node)};
  check_mpi(MPI_Allgather(&rank, 1, MPI_INT, node_info.ranks.data(), 1, MPI_INT, node.get()), "MPI_Allgather");
  return node_info;
}

namespace {

/// Maps a shared memory object. Returns null on failure.
std::shared_ptr<void> map_shared_memory(const char* name, int flags, i64 bytes) {
  const int file = ::shm_open(name, flags, S_IRUSR | S_IWUSR);
  if (file < 0) return nullptr;
  const auto size = static_cast<std::size_t>(bytes);
  void* memory = MAP_FAILED;
  if (!(flags & O_CREAT) ||
      ::posix_fallocate(file, 0, bytes) == 0)  // reserves space: reports a full /dev/shm before the first write
    memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [size](void* mapped) { ::munmap(mapped, size); }};
}

bool all_agree(bool local_value, const MpiComm& node) {
  int value = local_value;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_MIN, node.get()), "MPI_Allreduce");
  return value != 0;
}

}  // namespace

std::unique_ptr<StatusBoard> make_status_board() {
  const int rank = comm_rank(MPI_COMM_WORLD);
  MPI_Comm shared = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &shared),
            "MPI_Comm_split_type");
  const MpiComm node(shared);
  const bool is_first = node.rank() == 0;
  const i64 bytes = StatusBoard::bytes_for(node.size());

  std::array<char, 64> name{};
  std::shared_ptr<void> memory;
  if (is_first) {
    std::snprintf(name.data(), name.size(), "/megatron_cpp_%d", static_cast<int>(::getpid()));
    ::shm_unlink(name.data());  // left by a killed process with the same id
    memory = map_shared_memory(name.data(), O_RDWR | O_CREAT | O_EXCL, bytes);
  }
  check_mpi(MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, node.get()), "MPI_Bcast");
  const bool is_created = all_agree(!is_first || memory, node);
  if (!is_first && is_created) memory = map_shared_memory(name.data(), O_RDWR, bytes);
  const bool all_mapped = all_agree(memory != nullptr, node);
  if (is_first) ::shm_unlink(name.data());
  if (!all_mapped) return std::make_unique<StatusBoard>(rank);
  return std::make_unique<StatusBoard>(std::move(memory), node.size(), node.rank(), rank);
}

namespace {

/// Smaller tensors are rarely in shareable memory, and checking costs more than copying.
constexpr i64 kMinInPlaceBytes = SharedArena::kSmallestBlock;
/// Parts up to this size arrive sooner if sent directly to all ranks.
constexpr i64 kSmallPartBytes = 4096;

std::vector<int> all_gather_int(int value, const MpiComm& comm) {
  std::vector<int> all(comm.size());
  complete("MPI_Iallgather", {}, [&](MPI_Request* request) {
    return MPI_Iallgather(&value, 1, MPI_INT, all.data(), 1, MPI_INT, comm.get(), request);
  });
  return all;
}

/// Returns x if peers can map its memory, otherwise a copy in shareable memory if the device has an arena.
Tensor to_shareable_memory(const Tensor& x) {
  const SharedArena* arena = static_cast<const CpuDevice&>(x.device()).arena();
  if (!arena || arena->contains(x.raw())) return x;
  const i64 min_elements = kMinInPlaceBytes / size_of(x.dtype());
  Tensor copy = Tensor::empty({std::max(min_elements, x.numel())}, x.dtype(), x.device(), MemoryClass::Workspace);
  copy_bytes(copy.raw(), x.raw(), x.bytes());
  return copy;
}

/// Returns the waiting policy for collectives.
WaitPolicy wait_policy_for(const MpiWorld& world, bool is_single_node) {
  if (!is_single_node && world.progress) return world.progress->wait_policy();
  // Without a core per rank, a rank that yields is rescheduled only after more time than most waits take.
  const bool has_core = world.has_core_per_rank;
  return {.spins = has_core ? 2000 : 0, .yields = has_core ? 1000 : 50, .progress_callback = world.progress_callback()};
}

class MpiCommunicator final : public Communicator {
 public:
  /// `node` is the node id of this rank.
  MpiCommunicator(MpiComm comm, int node, MpiWorld world)
      : comm_(std::move(comm)),
        rank_(comm_.rank()),
        nodes_(all_gather_int(node, comm_)),
        is_single_node_(std::ranges::count(nodes_, node) == size()),
        world_(std::move(world)),
        wait_policy_(wait_policy_for(world_, is_single_node_)),
        gather_(comm_, nodes_, wait_policy_),
        messages_(comm_, nodes_, world_) {}
  ~MpiCommunicator() override {
    if (can_free())
      messages_.finish();
    else if (world_.progress)
      world_.progress->cancel();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(nodes_.size()); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    check_on_cpu(t);
    if (t.numel() == 0 || size() == 1) return {};
    if (try_in_place(t.bytes(), [&](DirectCollectives& node) { return node.all_reduce(op, t); })) return {};
    return run_async([this, t, op] { reducer().all_reduce(op, t.dtype(), bytes_of(t), t.numel()); });
  }

  Work all_gather(const Tensor& shard, Tensor& full) override {
    check_shard(shard, full, *this);
    const i64 bytes = shard.bytes();
    if (bytes == 0 || size() == 1) return copy(shard, full);
    if (try_in_place(bytes, [&](DirectCollectives& node) { return node.all_gather(shard, full); })) return {};
    if (is_single_node_) {
      reducer().all_gather(bytes_of(shard), bytes_of(full), bytes);
      return {};
    }
    Tensor local_part = full.view({size(), -1}).slice(rank_, rank_ + 1);
    copy(shard, local_part);
    return run_async([this, full, bytes] {
      if (bytes > kSmallPartBytes) return gather_.all_gather(bytes_of(full), bytes);
      complete("MPI_Iallgather", wait_policy_, [&](MPI_Request* request) {
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes_of(full), static_cast<int>(bytes), MPI_BYTE,
                              comm_.get(), request);
      });
    });
  }

  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    check_shard(shard, full, *this);
    if (shard.numel() == 0 || size() == 1) return copy(full, shard);
    if (try_in_place(shard.bytes(), [&](DirectCollectives& node) { return node.reduce_scatter(full, shard); }))
      return {};
    return run_async([this, full, shard] {
      reducer().reduce_scatter(full.dtype(), bytes_of(full), bytes_of(shard), shard.numel());
    });
  }

  Work broadcast(Tensor& t, int root) override {
    check_on_cpu(t);
    check_root(root, *this);
    if (t.bytes() == 0 || size() == 1) return {};
    if (try_in_place(t.bytes(), [&](DirectCollectives& node) { return node.broadcast(t, root); })) return {};
    if (is_single_node_) {
      reducer().broadcast(bytes_of(t), t.bytes(), root);
      return {};
    }
    return run_async([this, t, root] {
      if (t.bytes() > kEagerBytes) return gather_.broadcast(bytes_of(t), t.bytes(), root);
      for_each_message(t.bytes(), [&](i64 begin, int n) {
        complete("MPI_Ibcast", wait_policy_, [&](MPI_Request* request) {
          return MPI_Ibcast(bytes_of(t) + begin, n, MPI_BYTE, root, comm_.get(), request);
        });
      });
    });
  }

  Work all_to_all(const Tensor& in, Tensor& out) override {
    check_exchange(in, out, *this);
    const i64 bytes = in.bytes() / size();
    if (bytes == 0 || size() == 1) return copy(in, out);
    if (try_in_place(bytes, [&](DirectCollectives& node) { return node.all_to_all(in, out); })) return {};
    if (is_single_node_) {
      reducer().all_to_all(bytes_of(in), bytes_of(out), bytes);
      return {};
    }
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({r * (in.numel() / size()), in.numel() / size()});
    return exchange_parts(in, parts, out, parts);
  }

  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_on_cpu(in);
    check_on_cpu(out);
    check_exchange(in, send, out, receive, *this);
    const auto exchange = [&](DirectCollectives& node) {
      return node.all_to_all_v(to_shareable_memory(in), send, out, receive);
    };
    // Independent of the size, because it differs between ranks.
    if (try_in_place(kMinInPlaceBytes, exchange)) return {};
    return exchange_parts(in, send, out, receive);
  }

  Work send(const Tensor& t, int destination) override {
    check_on_cpu(t);
    check_peer(destination, *this);
    return messages_.send(t, destination);
  }

  Work recv(Tensor& t, int source) override {
    check_on_cpu(t);
    check_peer(source, *this);
    return messages_.recv(t, source);
  }

  void barrier() override {
    if (is_single_node_ && size() > 1 && reducer_) return reducer_->window().barrier();
    run_async([this] {
      complete("MPI_Ibarrier", wait_policy_, [&](MPI_Request* all) { return MPI_Ibarrier(comm_.get(), all); });
    }).wait();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_color(color);
    std::unique_ptr<Communicator> group;
    run_async([&] {
      group = std::make_unique<MpiCommunicator>(MpiComm::split(comm_.get(), color, key), nodes_[rank_], world_);
    }).wait();
    return group;
  }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static std::byte* bytes_of(const Tensor& t) { return static_cast<std::byte*>(t.raw()); }
  static Work copy(const Tensor& from, Tensor& to) {
    copy_bytes(to.raw(), from.raw(), from.bytes());
    return {};
  }

  /// Returns true if collectives run on the progress thread, overlapped with computation. They do so between nodes, and
  /// `comm_` is then used by that thread only.
  bool runs_async() const { return !is_single_node_ && world_.progress; }
  template <class Operation>
  Work run_async(Operation operation) {
    if (runs_async()) return world_.progress->start(std::move(operation));
    operation();
    return {};
  }

  /// Uses the progress thread regardless of size, because sizes differ between ranks. This also keeps messages of later
  /// exchanges behind the messages of this exchange.
  Work exchange_parts(const Tensor& in, std::span<const Part> send, const Tensor& out, std::span<const Part> receive) {
    if (!runs_async()) return messages_.exchange(in, send, out, receive, world_.wait_policy());
    return run_async([this, in, out, send_parts = std::vector(send.begin(), send.end()),
                      receive_parts = std::vector(receive.begin(), receive.end())] {
      messages_.exchange(in, send_parts, out, receive_parts, wait_policy_).wait();
    });
  }

  /// Created on first use: many groups only pass messages.
  NodeReducer& reducer() {
    if (!reducer_) reducer_ = std::make_unique<NodeReducer>(comm_, nodes_, wait_policy_);
    return *reducer_;
  }
  /// Runs `call` on tensors in shared memory if possible, where `bytes` is the size of a part. Returns false if nothing
  /// was done.
  template <class Call>
  bool try_in_place(i64 bytes, const Call& call) {
    if (bytes < kMinInPlaceBytes || size() == 1 || !is_single_node_) return false;
    if (!direct_) direct_ = std::make_unique<DirectCollectives>(reducer().window(), *world_.arenas);
    return call(*direct_);
  }

  MpiComm comm_;
  int rank_;
  std::vector<int> nodes_;  // node id of each rank
  bool is_single_node_;
  MpiWorld world_;
  WaitPolicy wait_policy_;
  NodeGather gather_;  // inter-node
  std::unique_ptr<NodeReducer> reducer_;
  std::unique_ptr<DirectCollectives> direct_;
  MpiMessages messages_;
};

/// Makes the sleeps of the calling thread longer while it exists (timer slack of Linux). MPI_Init and MPI_Finalize of
/// Open MPI check every 0.1 ms whether the other ranks have arrived. If many ranks share a core, these checks occupy
/// it, and the launcher and late ranks wait for their time slices. Threads that MPI_Init creates keep the slack; they
/// wait for messages, not for timers.
class LongSleeps {
 public:
  explicit LongSleeps(int node_ranks) {
    const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));  // regardless of how the launcher bound ranks
    ::prctl(PR_SET_TIMERSLACK, timer_slack_ns(node_ranks, cores), 0, 0, 0);
  }
  ~LongSleeps() { ::prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0); }  // the default
  LongSleeps(const LongSleeps&) = delete;
  LongSleeps& operator=(const LongSleeps&) = delete;
};

}  // namespace

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  std::string name(text.data(), static_cast<std::size_t>(length));
  name.resize(std::min(name.size(), name.find_first_of(",\n")));  // details of the build follow
  std::ranges::replace(name, '\t', ' ');
  return name;
}

MpiSession::MpiSession(const Launcher& launcher) {
  const LongSleeps sleeps(launcher.node_ranks);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  has_thread_multiple_ = provided == MPI_THREAD_MULTIPLE;
  MCPP_CHECK(provided >= MPI_THREAD_SERIALIZED, "this MPI library does not allow calls from several threads");
  try {
    launcher.check(size());
  } catch (...) {
    MPI_Finalize();  // no communication yet: a clean shutdown is possible
    throw;
  }
  node_info_ = query_node_info();
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::Internal));
  const LongSleeps sleeps(static_cast<int>(node_info_.ranks.size()));
  MPI_Finalize();
}

int MpiSession::rank() const {
  return comm_rank(MPI_COMM_WORLD);
}

int MpiSession::size() const {
  return comm_size(MPI_COMM_WORLD);
}

std::unique_ptr<Communicator> MpiSession::make_world(const std::function<int(int rank)>& node_of) const {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  MpiComm world(copy);
  const int node = node_of ? node_of(world.rank()) : node_info_.node();
  const auto arenas = std::make_shared<PeerArenas>();
  const MpiComm node_comm = MpiComm::split(world.get(), node, world.rank());
  const bool has_cores = node_info_.has_core_per_rank();
  const bool uses_progress_thread = has_thread_multiple_ && node_comm.size() < world.size();
  return std::make_unique<MpiCommunicator>(
      std::move(world), node,
      MpiWorld{.has_core_per_rank = has_cores,
               .arenas = arenas,
               .messages = PeerMessages::create(node_comm, arenas),
               .progress =
                   uses_progress_thread ? std::make_shared<ProgressThread>(MpiWorld::spins_of(has_cores)) : nullptr});
}

std::unique_ptr<StatusBoard> MpiSession::make_status_board() const {
  return mcpp::make_status_board();
}

void MpiSession::try_abort(int exit_code) noexcept {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
}

void MpiSession::abort(int exit_code) const noexcept {
  try_abort(exit_code);
  std::_Exit(exit_code);
}

}  // namespace mcpp
