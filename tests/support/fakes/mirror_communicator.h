// Group of two ranks in one thread, for tests of the order and contents of reductions.
#pragma once
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Rank 0 of two, whose peer always has the same values: a sum doubles them. Sums take effect only in wait(), so that a
/// reduction that is never awaited is noticed. The sizes of all reductions are recorded in start order.
class MirrorCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Work all_reduce(Tensor& t, ReduceOp) override {
    started.push_back(t.numel());
    return Work([t]() mutable {
      on_float(t.dtype(), [&]<class T>() {
        for (i64 i = 0; i < t.numel(); ++i) t.data<T>()[i] = from_double<T>(2 * to_double(t.data<T>()[i]));
      });
    });
  }
  Work all_gather(const Tensor&, Tensor&) override { return unused(); }
  Work reduce_scatter(const Tensor&, Tensor&) override { return unused(); }
  Work broadcast(Tensor&, int) override { return unused(); }
  Work all_to_all(const Tensor&, Tensor&) override { return unused(); }
  Work all_to_all_v(const Tensor&, std::span<const Part>, Tensor&, std::span<const Part>) override { return unused(); }
  Work send(const Tensor&, int) override { return unused(); }
  Work recv(Tensor&, int) override { return unused(); }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override { return nullptr; }
  void abort(int) noexcept override {}

  std::vector<i64> started;

 private:
  static Work unused() { fail(ExitCode::Internal, "the mirror only knows all_reduce"); }
};

}  // namespace mcpp
