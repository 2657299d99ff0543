#include "comm/nccl.h"

#include <nccl.h>

#include <array>

#include "comm/broadcast_value.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

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

/// One NCCL communicator and the stream that its operations run on, one after another.
class Lane {
 public:
  Lane(Communicator& host, CudaDevice& device) : device_(device) {
    ncclUniqueId id{};
    if (host.rank() == 0) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    broadcast_value(id, host);
    device_.activate();
    check_nccl(ncclCommInitRank(&comm_, host.size(), id, host.rank()), "ncclCommInitRank");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Lane() {
    // While an error unwinds the stack the peers may never come.
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
    } else {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    }
    cudaStreamDestroy(stream_);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Queues call(comm, stream) behind what the compute stream has to do by now. The tensors stay alive until wait().
  template <class Call>
  Work run(const char* name, std::array<Tensor, 2> tensors, Call&& call) {
    device_.activate();
    const CudaEvent ready(cudaEventDisableTiming);
    ready.record(device_.stream());
    ready.hold(stream_);
    check_nccl(call(comm_, stream_), name);
    auto done = std::make_shared<const CudaEvent>(cudaEventDisableTiming);
    done->record(stream_);
    return Work([done, tensors = std::move(tensors), &device = device_] { done->hold(device.stream()); });
  }

 private:
  CudaDevice& device_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, CudaDevice& device)
      : host_(std::move(host)),
        device_(device),
        collectives_(*host_, device),
        upward_(*host_, device),
        downward_(*host_, device) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    if (is_on_host(t)) return host_->all_reduce(t, op);
    return collectives_.run("ncclAllReduce", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(t.raw(), t.raw(), count(t), nccl_type(t.dtype()), op == ReduceOp::Sum ? ncclSum : ncclMax,
                           comm, stream);
    });
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    if (is_on_host(full)) return host_->all_gather(shard, full);
    return collectives_.run("ncclAllGather", {shard, full}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(shard.raw(), full.raw(), count(shard), nccl_type(shard.dtype()), comm, stream);
    });
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    if (is_on_host(full)) return host_->reduce_scatter(full, shard);
    return collectives_.run("ncclReduceScatter", {full, shard}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(full.raw(), shard.raw(), count(shard), nccl_type(shard.dtype()), ncclSum, comm, stream);
    });
  }
  Work broadcast(Tensor& t, int root) override {
    if (is_on_host(t)) return host_->broadcast(t, root);
    return collectives_.run("ncclBroadcast", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(t.raw(), t.raw(), count(t), nccl_type(t.dtype()), root, comm, stream);
    });
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    if (is_on_host(in)) return host_->all_to_all(in, out);
    return collectives_.run("ncclSend and ncclRecv", {in, out},
                            [&](ncclComm_t comm, cudaStream_t stream) { return exchange(in, out, comm, stream); });
  }

  // Messages to higher ranks and messages to lower ones each have a lane of their own. In a lane they only ever wait
  // for ranks on one side, so that a receive that was posted early holds up no message that it depends on itself.
  Work send(const Tensor& t, int destination) override {
    if (is_on_host(t)) return host_->send(t, destination);
    Tensor copy = Tensor::like(t);
    check_cuda(cudaMemcpyAsync(copy.raw(), t.raw(), static_cast<std::size_t>(t.bytes()), cudaMemcpyDeviceToDevice,
                               device_.stream()),
               "cudaMemcpyAsync");
    Lane& lane = destination > rank() ? upward_ : downward_;
    return lane.run("ncclSend", {copy, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclSend(copy.raw(), count(copy), nccl_type(copy.dtype()), destination, comm, stream);
    });
  }
  Work recv(Tensor& t, int source) override {
    if (is_on_host(t)) return host_->recv(t, source);
    Lane& lane = source < rank() ? upward_ : downward_;
    return lane.run("ncclRecv", {t, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclRecv(t.raw(), count(t), nccl_type(t.dtype()), source, comm, stream);
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
  static bool is_on_host(const Tensor& t) { return t.device().type() == DeviceType::Cpu; }
  static std::size_t count(const Tensor& t) { return static_cast<std::size_t>(t.numel()); }

  ncclResult_t exchange(const Tensor& in, Tensor& out, ncclComm_t comm, cudaStream_t stream) const {
    const i64 part = in.bytes() / size();
    auto* from = static_cast<std::byte*>(in.raw());
    auto* to = static_cast<std::byte*>(out.raw());
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < size() && result == ncclSuccess; ++r) {
      const auto bytes = static_cast<std::size_t>(part);
      result = ncclSend(from + r * part, bytes, ncclInt8, r, comm, stream);
      if (result == ncclSuccess) result = ncclRecv(to + r * part, bytes, ncclInt8, r, comm, stream);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  std::unique_ptr<Communicator> host_;
  CudaDevice& device_;
  Lane collectives_, upward_, downward_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, Device& device) {
  MCPP_CHECK(device.type() == DeviceType::Cuda, "NCCL works on GPUs");
  return std::make_unique<NcclCommunicator>(std::move(host), static_cast<CudaDevice&>(device));
}

}  // namespace mcpp
