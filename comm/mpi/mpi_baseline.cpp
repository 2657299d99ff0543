#include "comm/mpi/mpi_baseline.h"

#include <vector>

#include "comm/checks.h"
#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {
namespace {

MpiComm copy_of_world() {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return MpiComm(copy);
}

/// Counts and displacements in bytes as MPI expects them.
struct IntParts {
  IntParts(std::span<const Part> parts, i64 item) {
    for (const Part& part : parts) {
      counts.push_back(static_cast<int>(part.count * item));
      firsts.push_back(static_cast<int>(part.first * item));
    }
  }
  std::vector<int> counts, firsts;
};

class MpiBaseline final : public Communicator {
 public:
  explicit MpiBaseline(MpiComm comm) : comm_(std::move(comm)), rank_(comm_.rank()), size_(comm_.size()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    MCPP_CHECK(t.dtype() == DType::F32 && op == ReduceOp::Sum, "the baseline only sums fp32");
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, t.raw(), count(t), MPI_FLOAT, MPI_SUM, comm_.get()), "MPI_Allreduce");
    return {};
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    check_shard(shard, full, *this);
    check_mpi(MPI_Allgather(shard.raw(), bytes(shard), MPI_BYTE, full.raw(), bytes(shard), MPI_BYTE, comm_.get()),
              "MPI_Allgather");
    return {};
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    check_shard(shard, full, *this);
    MCPP_CHECK(full.dtype() == DType::F32, "the baseline only sums fp32");
    check_mpi(MPI_Reduce_scatter_block(full.raw(), shard.raw(), count(shard), MPI_FLOAT, MPI_SUM, comm_.get()),
              "MPI_Reduce_scatter_block");
    return {};
  }
  Work broadcast(Tensor& t, int root) override {
    check_root(root, *this);
    check_mpi(MPI_Bcast(t.raw(), bytes(t), MPI_BYTE, root, comm_.get()), "MPI_Bcast");
    return {};
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    check_exchange(in, out, *this);
    const int part = bytes(in) / size_;
    check_mpi(MPI_Alltoall(in.raw(), part, MPI_BYTE, out.raw(), part, MPI_BYTE, comm_.get()), "MPI_Alltoall");
    return {};
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_exchange(in, send, out, receive, *this);
    const IntParts from(send, size_of(in.dtype())), to(receive, size_of(in.dtype()));
    check_mpi(MPI_Alltoallv(in.raw(), from.counts.data(), from.firsts.data(), MPI_BYTE, out.raw(), to.counts.data(),
                            to.firsts.data(), MPI_BYTE, comm_.get()),
              "MPI_Alltoallv");
    return {};
  }
  Work send(const Tensor& t, int destination) override {
    check_peer(destination, *this);
    check_mpi(MPI_Send(t.raw(), bytes(t), MPI_BYTE, destination, 0, comm_.get()), "MPI_Send");
    return {};
  }
  Work recv(Tensor& t, int source) override {
    check_peer(source, *this);
    check_mpi(MPI_Recv(t.raw(), bytes(t), MPI_BYTE, source, 0, comm_.get(), MPI_STATUS_IGNORE), "MPI_Recv");
    return {};
  }
  void barrier() override { check_mpi(MPI_Barrier(comm_.get()), "MPI_Barrier"); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_color(color);
    return std::make_unique<MpiBaseline>(MpiComm::split(comm_.get(), color, key));
  }
  void abort(int exit_code) noexcept override { MPI_Abort(MPI_COMM_WORLD, exit_code); }

 private:
  static int count(const Tensor& t) { return static_cast<int>(t.numel()); }
  static int bytes(const Tensor& t) { return static_cast<int>(t.bytes()); }

  MpiComm comm_;
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_baseline() {
  return std::make_unique<MpiBaseline>(copy_of_world());
}

}  // namespace mcpp
