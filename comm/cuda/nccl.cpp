#include "comm/nccl.h"

#include <nccl.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/checks.h"
#include "comm/object_collectives.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"
#include "tensor/cuda/ordered_keys.h"

namespace mcpp {
namespace {

void check_nccl(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  fail(ExitCode::PeerLost, call, ": ", ncclGetErrorString(code));
}

ncclDataType_t nccl_type(DType t) {
  switch (t) {
    case DType::F32:
      return ncclFloat32;
    case DType::BF16:
      return ncclBfloat16;
    case DType::F16:
      return ncclFloat16;
    case DType::F64:
      return ncclFloat64;
    case DType::I32:
      return ncclInt32;
    case DType::I64:
      return ncclInt64;
  }
  fail(ExitCode::Internal, "NCCL has no type for ", name_of(t));
}

ncclUniqueId new_id() {
  ncclUniqueId id{};
  check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

/// NCCL communicator that another thread may query while this rank closes it.
class Connection {
 public:
  /// Collective. Returns once all ranks have called it.
  Connection(const ncclUniqueId& id, int ranks, int rank) {
    check_nccl(ncclCommInitRank(&comm_, ranks, id, rank), "ncclCommInitRank");
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  ncclComm_t get() const { return comm_; }
  /// Returns true if the work recorded by `done` has completed or the connection is closed. Throws PeerLost if NCCL
  /// reports a failure, which may stem from any earlier operation.
  bool has_completed(const CudaEvent& done) {
    const std::lock_guard lock(mutex_);
    if (!comm_) return true;
    ncclResult_t state = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) check_nccl(state, "an operation of NCCL");
    return done.is_done();
  }
  /// If `has_failed`, aborts the communicator: the peers may never arrive, and kernels on the GPU must stop waiting for
  /// them.
  void close(bool has_failed) noexcept {
    const std::lock_guard lock(mutex_);
    if (has_failed)
      ncclCommAbort(comm_);
    else
      ncclCommDestroy(comm_);
    comm_ = nullptr;
  }

 private:
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

/// NCCL communicator and the stream that serializes its operations.
class Lane {
 public:
  Lane(CudaDevice& device, const ncclUniqueId& id, int ranks, int rank) : device_(device) {
    device_.activate();
    connection_ = std::make_shared<Connection>(id, ranks, rank);
    // Higher priority than the compute stream, because other ranks wait for communication.
    int lowest = 0, highest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest), "cudaStreamCreateWithPriority");
  }
  ~Lane() {
    const bool has_failed = std::uncaught_exceptions() > 0;
    if (!has_failed) cudaStreamSynchronize(stream_);
    connection_->close(has_failed);
    cudaStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Enqueues call(comm, stream) after the work queued on the compute stream so far. The tensors stay alive until
  /// wait(); later users of their memory are ordered after the operation by the compute stream. wait() calls `on_wait`.
  template <class Call>
  Work run(const char* name, std::array<Tensor, 2> tensors, Call&& call, std::function<void()> on_wait = nullptr) {
    const std::shared_ptr<const CudaEvent> done = queue(name, call);
    return Work(
        [done, tensors = std::move(tensors), on_wait = std::move(on_wait), &device = device_] {
          done->block_stream(device.stream());
          if (on_wait) on_wait();
        },
        query(done));
  }

  /// Enqueues an operation that the compute stream never waits for. `copy` stays alive until the operation completes.
  template <class Call>
  Work run_detached(const char* name, Tensor copy, Call&& call) {
    while (!detached_.empty() && detached_.front().done->is_done()) detached_.pop_front();
    const std::shared_ptr<const CudaEvent> done = queue(name, call);
    detached_.push_back({done, std::move(copy)});
    return Work([] {}, query(done));
  }

 private:
  struct DetachedOperation {
    std::shared_ptr<const CudaEvent> done;
    Tensor copy;
  };

  /// Returns a completion query for another thread. It selects the device first (otherwise that thread would create a
  /// context on GPU 0) and may outlive the device.
  std::function<bool()> query(std::shared_ptr<const CudaEvent> done) const {
    return [done = std::move(done), connection = connection_, ordinal = device_.ordinal()] {
      check_cuda(cudaSetDevice(ordinal), "cudaSetDevice");
      return connection->has_completed(*done);
    };
  }

  template <class Call>
  std::shared_ptr<const CudaEvent> queue(const char* name, Call&& call) {
    device_.activate();
    const CudaEvent ready(cudaEventDisableTiming);
    ready.record(device_.stream());
    ready.block_stream(stream_);
    check_nccl(call(connection_->get(), stream_), name);
    auto done = std::make_shared<const CudaEvent>(cudaEventDisableTiming);
    done->record(stream_);
    return done;
  }

  CudaDevice& device_;
  std::shared_ptr<Connection> connection_;
  cudaStream_t stream_ = nullptr;
  std::deque<DetachedOperation> detached_;
};

/// NCCL group. Lanes cost time and GPU memory, so they are created on demand: lanes for collectives by the first
/// operation that uses them, and lanes for messages by connect().
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, CudaDevice& device) : host_(std::move(host)), device_(device) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    if (is_on_host(t)) return host_->all_reduce(t, op);
    if (t.numel() == 0 || size() == 1) return {};
    if (op == ReduceOp::Max && is_float(t.dtype())) return all_reduce_max(t);
    return collective(Kind::Sum, "ncclAllReduce", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(t.raw(), t.raw(), count(t), nccl_type(t.dtype()), op == ReduceOp::Sum ? ncclSum : ncclMax,
                           comm, stream);
    });
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    if (is_on_host(full)) return host_->all_gather(shard, full);
    check_fits(shard, full, *this);
    if (full.numel() == 0) return {};
    return collective(Kind::Gather, "ncclAllGather", {shard, full}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(shard.raw(), full.raw(), count(shard), nccl_type(shard.dtype()), comm, stream);
    });
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    if (is_on_host(full)) return host_->reduce_scatter(full, shard);
    check_fits(shard, full, *this);
    if (full.numel() == 0) return {};
    return collective(Kind::Sum, "ncclReduceScatter", {full, shard}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(full.raw(), shard.raw(), count(shard), nccl_type(shard.dtype()), ncclSum, comm, stream);
    });
  }
  Work broadcast(Tensor& t, int root) override {
    if (is_on_host(t)) return host_->broadcast(t, root);
    check_root(root, *this);
    if (t.numel() == 0 || size() == 1) return {};
    return collective(Kind::Gather, "ncclBroadcast", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(t.raw(), t.raw(), count(t), nccl_type(t.dtype()), root, comm, stream);
    });
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    if (is_on_host(in)) return host_->all_to_all(in, out);
    check_equal_parts(in, out, *this);
    if (in.numel() == 0) return {};
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({r * (in.numel() / size()), in.numel() / size()});
    return all_to_all_v(in, parts, out, parts);
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    if (is_on_host(in)) return host_->all_to_all_v(in, send, out, receive);
    check_exchange(in, send, out, receive, *this);
    return collective(Kind::Sum, "ncclSend and ncclRecv", {in, out}, [&](ncclComm_t comm, cudaStream_t stream) {
      return exchange(in, send, out, receive, comm, stream);
    });
  }

  // Every ordered pair of ranks has a message lane of its own, on which both ranks issue their messages in the same
  // order. A message therefore never waits for an unrelated message.
  void connect(const std::vector<int>& peers) override {
    std::map<std::pair<int, int>, ncclUniqueId> ids;  // by source and destination
    for (const int peer : peers) {
      check_peer(peer, *this);
      const ncclUniqueId id = ids[{rank(), peer}] = new_id();
      send_value(id, *host_, peer);
    }
    for (const int peer : peers) ids[{peer, rank()}] = receive_value<ncclUniqueId>(*host_, peer);
    // Creating a lane blocks until both ranks arrive. All ranks create lanes in the same global order, so this cannot
    // deadlock.
    for (const auto& [pair, id] : ids)
      messages_[pair] = std::make_unique<Lane>(device_, id, 2, pair.first == rank() ? kSender : kReceiver);
  }
  Work send(const Tensor& t, int destination) override {
    if (is_on_host(t)) return host_->send(t, destination);
    check_peer(destination, *this);
    if (t.numel() == 0) return {};
    Tensor copy = Tensor::like(t);
    check_cuda(cudaMemcpyAsync(copy.raw(), t.raw(), static_cast<std::size_t>(t.bytes()), cudaMemcpyDeviceToDevice,
                               device_.stream()),
               "cudaMemcpyAsync");
    return lane(rank(), destination).run_detached("ncclSend", copy, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclSend(copy.raw(), count(copy), nccl_type(copy.dtype()), kReceiver, comm, stream);
    });
  }
  Work recv(Tensor& t, int source) override {
    if (is_on_host(t)) return host_->recv(t, source);
    check_peer(source, *this);
    if (t.numel() == 0) return {};
    return lane(source, rank()).run("ncclRecv", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclRecv(t.raw(), count(t), nccl_type(t.dtype()), kSender, comm, stream);
    });
  }

  void barrier() override {
    device_.synchronize();
    host_->barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NcclCommunicator>(host_->split(color, key), device_);
  }
  void abort(int exit_code) noexcept override { host_->abort(exit_code); }

 private:
  static constexpr int kSender = 0, kReceiver = 1;  // ranks within the lane of a pair

  static bool is_on_host(const Tensor& t) { return t.device().type() == DeviceType::Cpu; }
  static std::size_t count(const Tensor& t) { return static_cast<std::size_t>(t.numel()); }

  using Kind = LaneSelector::Kind;

  /// Reduces integers that are ordered like the numbers, because NCCL's maximum of NaN and a number is the number.
  Work all_reduce_max(const Tensor& t) {
    const Tensor keys = Tensor::empty({t.numel()}, ordered_key_type(t.dtype()), t.device());
    return collective(Kind::Sum, "ncclAllReduce", {t, keys}, [&](ncclComm_t comm, cudaStream_t stream) {
      encode_ordered_keys(t, keys, stream);
      const ncclResult_t result =
          ncclAllReduce(keys.raw(), keys.raw(), count(keys), nccl_type(keys.dtype()), ncclMax, comm, stream);
      if (result == ncclSuccess) decode_ordered_keys(keys, t, stream);
      return result;
    });
  }
  template <class Call>
  Work collective(Kind kind, const char* name, std::array<Tensor, 2> tensors, Call&& call) {
    const std::size_t index = lane_selector_->begin(kind);
    std::unique_ptr<Lane>& lane = collectives_[index];
    if (!lane) {
      ncclUniqueId id = rank() == 0 ? new_id() : ncclUniqueId{};
      broadcast_value(id, *host_);
      lane = std::make_unique<Lane>(device_, id, size(), rank());
    }
    return lane->run(name, std::move(tensors), call,
                     [selector = lane_selector_, index, kind] { selector->end(index, kind); });
  }
  Lane& lane(int source, int destination) {
    const auto it = messages_.find({source, destination});
    MCPP_CHECK(it != messages_.end(), "rank ", source, " sends to rank ", destination,
               ", but connect() was not called for this pair");
    return *it->second;
  }

  /// Skips empty parts on both sides.
  static ncclResult_t exchange(const Tensor& in, std::span<const Part> send, const Tensor& out,
                               std::span<const Part> receive, ncclComm_t comm, cudaStream_t stream) {
    const i64 item = size_of(in.dtype());
    auto* from = static_cast<std::byte*>(in.raw());
    auto* to = static_cast<std::byte*>(out.raw());
    const auto bytes = [=](const Part& part) { return static_cast<std::size_t>(part.count * item); };
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < static_cast<int>(send.size()) && result == ncclSuccess; ++r) {
      if (send[r].count > 0) result = ncclSend(from + send[r].first * item, bytes(send[r]), ncclInt8, r, comm, stream);
      if (receive[r].count > 0 && result == ncclSuccess)
        result = ncclRecv(to + receive[r].first * item, bytes(receive[r]), ncclInt8, r, comm, stream);
    }
    const ncclResult_t group_result = ncclGroupEnd();
    return result == ncclSuccess ? group_result : result;
  }

  std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  std::shared_ptr<LaneSelector> lane_selector_ =
      std::make_shared<LaneSelector>();  // shared: a Work may outlive the group
  std::array<std::unique_ptr<Lane>, LaneSelector::kLanes> collectives_;
  std::map<std::pair<int, int>, std::unique_ptr<Lane>> messages_;  // by source and destination
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "ncclGetVersion");
  return str(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Device& device) {
  MCPP_CHECK(device.type() == DeviceType::Cuda, "NCCL requires a GPU");
  return std::make_unique<NcclCommunicator>(std::move(host), static_cast<CudaDevice&>(device));
}

}  // namespace mcpp
