// Groups that record when NCCL would have to connect.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/nccl.h"

namespace mcpp::test {

/// Wraps `inner` and all groups split from it. Collectives use lanes as NCCL does, and the first operation of each lane
/// is recorded in `opened`.
class LaneRecorder final : public Communicator {
 public:
  using Opened = std::vector<std::string>;
  LaneRecorder(std::unique_ptr<Communicator> inner, std::shared_ptr<Opened> opened)
      : inner_(std::move(inner)), opened_(std::move(opened)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override { return in_lane("all_reduce", kSum, t, inner_->all_reduce(t, op)); }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    return in_lane("all_gather", kGather, full, inner_->all_gather(shard, full));
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    return in_lane("reduce_scatter", kSum, full, inner_->reduce_scatter(full, shard));
  }
  Work broadcast(Tensor& t, int root) override { return in_lane("broadcast", kGather, t, inner_->broadcast(t, root)); }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    return in_lane("all_to_all", kSum, in, inner_->all_to_all(in, out));
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    return in_lane("all_to_all_v", kSum, in, inner_->all_to_all_v(in, send, out, receive));
  }
  void connect(const std::vector<int>& peers) override { inner_->connect(peers); }
  Work send(const Tensor& t, int destination) override { return inner_->send(t, destination); }
  Work recv(Tensor& t, int source) override { return inner_->recv(t, source); }
  void barrier() override { inner_->barrier(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<LaneRecorder>(inner_->split(color, key), opened_);
  }
  void abort(int exit_code) noexcept override { inner_->abort(exit_code); }

 private:
  static constexpr LaneSelector::Kind kSum = LaneSelector::Kind::Sum, kGather = LaneSelector::Kind::Gather;

  /// Uses a lane only if NCCL has work to do. `t` is the full tensor of the operation.
  Work in_lane(const char* name, LaneSelector::Kind kind, const Tensor& t, Work work) {
    if (size() == 1 || t.numel() == 0) return work;
    const std::size_t lane = choice_->begin(kind);
    if (!std::exchange(is_open_[lane], true))
      opened_->push_back(str(name, " of ", t.numel(), " elements, lane ", lane, " of a group of ", size()));
    auto started = std::make_shared<Work>(std::move(work));
    return Work([started, lane, kind, choice = choice_] {
      started->wait();
      choice->end(lane, kind);
    });
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Opened> opened_;
  std::shared_ptr<LaneSelector> choice_ = std::make_shared<LaneSelector>();  // Works may outlive the group
  std::array<bool, LaneSelector::kLanes> is_open_{};
};

}  // namespace mcpp::test
