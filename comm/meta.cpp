#include "base/check.h"
#include "comm/communicator.h"

namespace mcpp {
namespace {

class MetaCommunicator final : public Communicator {
 public:
  explicit MetaCommunicator(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }

  Work all_reduce(Tensor&, ReduceOp) override { return {}; }
  Work all_gather(const Tensor&, Tensor&) override { return {}; }
  Work reduce_scatter(const Tensor&, Tensor&) override { return {}; }
  Work broadcast(Tensor&, int) override { return {}; }
  Work all_to_all(const Tensor&, Tensor&) override { return {}; }
  Work all_to_all_v(const Tensor&, std::span<const Part>, Tensor&, std::span<const Part>) override { return {}; }
  Work send(const Tensor&, int) override { return {}; }
  Work recv(Tensor&, int) override { return {}; }
  void barrier() override {}
  std::unique_ptr<Communicator> split(int, int) override {
    fail(ExitCode::Internal, "a group on the meta device cannot be split: it does not know the colors of other ranks");
  }
  void abort(int) noexcept override {}

 private:
  int size_;
};

}  // namespace

std::unique_ptr<Communicator> make_meta_communicator(i64 size) {
  return std::make_unique<MetaCommunicator>(static_cast<int>(size));
}

}  // namespace mcpp
