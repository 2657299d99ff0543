#include "nn/offload/host_activations.h"

namespace mcpp {

void HostActivations::Leaving::go() {
  copies.clear();
  tensors.clear();
}

class HostActivations::Away final : public TensorsAway {
 public:
  Away(SideCopies& copies, HostRooms& rooms, const std::vector<Tensor>& tensors)
      : copies_(copies), leaving_(std::make_shared<Leaving>()) {
    for (const Tensor& t : tensors) {
      parts_.push_back({rooms.take(t.shape(), t.dtype()), t.device(), {}, {}});
      leaving_->copies.push_back(copies.to_host(t, *parts_.back().room));
    }
    if (!copies.are_immediate()) leaving_->tensors = tensors;
  }

  ~Away() override { leaving_->go(); }
  std::shared_ptr<Leaving> leaving() const { return leaving_; }

  void expect() override {
    if (!copies_.are_immediate() && leaving_->tensors.empty()) begin();
  }
  std::vector<Tensor> take() override {
    if (std::vector<Tensor> still_here = leaving_->tensors; !still_here.empty()) {
      leaving_->go();
      return still_here;
    }
    begin();
    std::vector<Tensor> tensors;
    for (Part& part : parts_) {
      part.coming.hold_ops();
      tensors.push_back(std::move(part.back));
    }
    parts_.clear();
    return tensors;
  }

 private:
  struct Part {
    std::shared_ptr<const Tensor> room;
    Device& device;
    Tensor back;
    SideCopy coming;
  };

  /// Starts copying the tensors back to the device, unless that has begun.
  void begin() {
    for (Part& part : parts_) {
      if (part.back.defined()) continue;
      part.back = Tensor::empty(part.room->shape(), part.room->dtype(), part.device);
      part.coming = copies_.to_device(*part.room, part.back);
    }
  }

  SideCopies& copies_;
  std::shared_ptr<Leaving> leaving_;
  std::vector<Part> parts_;
};

std::unique_ptr<TensorsAway> HostActivations::put(std::vector<Tensor> tensors) {
  auto away = std::make_unique<Away>(*copies_, rooms_, tensors);
  if (copies_->are_immediate()) return away;
  leaving_.push_back(away->leaving());
  if (leaving_.size() > kLeaving) {
    leaving_.front()->go();
    leaving_.pop_front();
  }
  return away;
}

std::string HostActivations::describe() const {
  return "in host memory";
}

}  // namespace mcpp
