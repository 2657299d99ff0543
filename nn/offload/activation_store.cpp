#include "nn/offload/activation_store.h"

#include "nn/offload/file_activations.h"

namespace mcpp {

void HostActivations::PendingOffload::finish() {
  copies.clear();
  tensors.clear();
}

class HostActivations::OffloadedBatch final : public OffloadedTensors {
 public:
  OffloadedBatch(AsyncCopyEngine& copies, PinnedBufferPool& buffers, const std::vector<Tensor>& tensors)
      : copy_engine_(copies), pending_offloads_(std::make_shared<PendingOffload>()) {
    for (const Tensor& t : tensors) {
      parts_.push_back({buffers.take(t.shape(), t.dtype()), t.device(), {}, {}});
      pending_offloads_->copies.push_back(copies.to_host(t, *parts_.back().host));
    }
    if (!copies.is_synchronous()) pending_offloads_->tensors = tensors;
  }

  ~OffloadedBatch() override { pending_offloads_->finish(); }
  std::shared_ptr<PendingOffload> pending() const { return pending_offloads_; }

  void prefetch() override {
    if (!copy_engine_.is_synchronous() && pending_offloads_->tensors.empty()) begin();
  }
  std::vector<Tensor> take() override {
    if (std::vector<Tensor> originals = pending_offloads_->tensors; !originals.empty()) {
      pending_offloads_->finish();
      return originals;
    }
    begin();
    std::vector<Tensor> tensors;
    for (Part& part : parts_) {
      part.reload.make_stream_wait();
      tensors.push_back(std::move(part.reloaded));
    }
    parts_.clear();
    return tensors;
  }

 private:
  struct Part {
    std::shared_ptr<const Tensor> host;
    Device& device;
    Tensor reloaded;
    AsyncCopy reload;
  };

  /// Starts copying the tensors back to the device, unless that has begun.
  void begin() {
    for (Part& part : parts_) {
      if (part.reloaded.defined()) continue;
      part.reloaded = Tensor::empty(part.host->shape(), part.host->dtype(), part.device);
      part.reload = copy_engine_.to_device(*part.host, part.reloaded);
    }
  }

  AsyncCopyEngine& copy_engine_;
  std::shared_ptr<PendingOffload> pending_offloads_;
  std::vector<Part> parts_;
};

std::unique_ptr<OffloadedTensors> HostActivations::put(std::vector<Tensor> tensors) {
  auto offloaded = std::make_unique<OffloadedBatch>(*copy_engine_, pinned_buffers_, tensors);
  if (copy_engine_->is_synchronous()) return offloaded;
  pending_offloads_.push_back(offloaded->pending());
  if (pending_offloads_.size() > kMaxPendingOffloads) {
    pending_offloads_.front()->finish();
    pending_offloads_.pop_front();
  }
  return offloaded;
}

std::string HostActivations::describe() const {
  return "in host memory";
}

std::unique_ptr<ActivationStore> make_activation_store(const ActivationOffload& offload, Device& device) {
  switch (offload.tier) {
    case OffloadTier::Device:
      return nullptr;
    case OffloadTier::Host:
      return std::make_unique<HostActivations>(make_async_copy_engine(device));
    case OffloadTier::File:
      return std::make_unique<FileActivations>(offload, device, make_transfer_queue(), make_async_copy_engine(device));
  }
  fail(ExitCode::Internal, "unknown storage tier for activations");
}

}  // namespace mcpp
