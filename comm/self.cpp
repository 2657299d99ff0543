#include <cstdlib>

#include "comm/checks.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Work all_reduce(Tensor&, ReduceOp) override { return {}; }
  Work all_gather(const Tensor& shard, Tensor& full) override { return copy(shard, full); }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override { return copy(full, shard); }
  Work broadcast(Tensor&, int root) override {
    check_root(root, *this);
    return {};
  }
  Work all_to_all(const Tensor& in, Tensor& out) override { return copy(in, out); }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_exchange(in, send, out, receive, *this);
    Tensor to = out.flat(receive[0].first, receive[0].count);
    return copy(in.flat(send[0].first, send[0].count), to);
  }
  Work send(const Tensor&, int) override { fail(ExitCode::Internal, "a rank cannot send to itself"); }
  Work recv(Tensor&, int) override { fail(ExitCode::Internal, "a rank cannot receive from itself"); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int color, int) override {
    check_color(color);
    return make_self_communicator();
  }
  void abort(int exit_code) noexcept override { std::_Exit(exit_code); }

 private:
  static Work copy(const Tensor& from, Tensor& to) {
    check_same_kind(from, to);
    if (from.numel() > 0 && from.raw() != to.raw()) ops::copy(from, to);
    return {};
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace mcpp
