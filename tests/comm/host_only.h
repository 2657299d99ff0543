// Group that rejects tensors of one device, as groups in host memory reject GPU tensors.
#pragma once
#include "comm/communicator.h"

namespace mcpp::test {

class HostOnly final : public Communicator {
 public:
  HostOnly(std::unique_ptr<Communicator> inner, const Device& refused) : inner_(std::move(inner)), refused_(refused) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Work all_reduce(Tensor& t, ReduceOp op) override { return inner_->all_reduce(checked(t), op); }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    return inner_->all_gather(checked(shard), checked(full));
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    return inner_->reduce_scatter(checked(full), checked(shard));
  }
  Work broadcast(Tensor& t, int root) override { return inner_->broadcast(checked(t), root); }
  Work all_to_all(const Tensor& in, Tensor& out) override { return inner_->all_to_all(checked(in), checked(out)); }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    return inner_->all_to_all_v(checked(in), send, checked(out), receive);
  }
  Work send(const Tensor& t, int destination) override { return inner_->send(checked(t), destination); }
  Work recv(Tensor& t, int source) override { return inner_->recv(checked(t), source); }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<HostOnly>(inner_->split(color, key), refused_);
  }
  void abort(int exit_code) noexcept override { inner_->abort(exit_code); }

 private:
  template <class T>
  T& checked(T& t) const {
    MCPP_CHECK(&t.device() != &refused_, "a tensor of the device got through");
    return t;
  }
  std::unique_ptr<Communicator> inner_;
  const Device& refused_;
};

}  // namespace mcpp::test
