// Group of ranks on the meta device. Only rank 0 exists.
#pragma once
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "tensor/op_trace.h"

namespace mcpp {

/// Rank 0 of `size` ranks. Operations complete immediately and transfer nothing; if the tensor's device records ops,
/// they are recorded with the group's name. A test may derive from it and override the operations that it observes.
class MetaCommunicator : public Communicator {
 public:
  explicit MetaCommunicator(i64 size, std::string name = "") : size_(static_cast<int>(size)), name_(std::move(name)) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  Work all_reduce(Tensor& t, ReduceOp op) override;
  Work all_gather(const Tensor& shard, Tensor& full) override;
  Work reduce_scatter(const Tensor& full, Tensor& shard) override;
  Work broadcast(Tensor& t, int root) override;
  Work all_to_all(const Tensor& in, Tensor& out) override;
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override;
  Work send(const Tensor& t, int destination) override;
  Work recv(Tensor& t, int source) override;
  void barrier() override {}
  /// Fails, because the colors of the other ranks are unknown.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(int) noexcept override {}

 private:
  Work record(MessageKind kind, const Tensor& t, i64 elements);

  int size_;
  std::string name_;
  int in_flight_ = 0;
};

}  // namespace mcpp
