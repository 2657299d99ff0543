#include "optimizer/states/reconstructed_master.h"

#include <cstring>
#include <utility>

#include "base/integer_math.h"
#include "tensor/ops/ops.h"
#include "tensor/tensor_storage.h"

namespace mcpp {
namespace {

Tensor room(i64 count, DType type, Device& device) {
  return Tensor::zeros({count}, type, device, MemoryClass::Workspace);
}

class ReconstructedMaster final : public EncodedStorage {
 public:
  explicit ReconstructedMaster(MasterParts parts) : parts_(std::move(parts)) {}

  DType dtype() const override { return DType::F32; }
  i64 numel() const override { return parts_.model->numel(); }
  std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const override {
    const i64 first = (parts_.offset + begin) / kRemainderBlock * kRemainderBlock;
    const i64 end = round_up(parts_.offset + begin + count, kRemainderBlock);
    return reconstructed_master({.model = parts_.model->part(begin, count),
                                 .low = parts_.low->part(first / 2, (end - first) / 2),
                                 .rounded_up = parts_.rounded_up->part(first / 32, (end - first) / 32),
                                 .offset = parts_.offset + begin - first});
  }
  std::shared_ptr<const TensorStorage> snapshot() const override {
    const auto of = [](const std::shared_ptr<TensorStorage>& numbers) {
      return std::const_pointer_cast<TensorStorage>(numbers->snapshot());
    };
    return reconstructed_master({of(parts_.model), of(parts_.low), of(parts_.rounded_up), parts_.offset});
  }

 private:
  void decode(Tensor& to) const override {
    Tensor model = room(elements(), DType::BF16, to.device());
    Tensor own = model.flat(parts_.offset, numel());
    parts_.model->read(own);
    std::memcpy(to.raw(), joined(model).flat(parts_.offset, numel()).raw(), static_cast<std::size_t>(to.bytes()));
  }
  /// Remainders of other elements in the blocks are preserved for any model weights, so zeros are used for those.
  void encode(const Tensor& from) override {
    Device& device = from.device();
    Tensor master = joined(room(elements(), DType::BF16, device));
    std::memcpy(master.flat(parts_.offset, numel()).raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    ParamRemainders remainders = remainders_on(device);
    ops::param_remainders(master, remainders);
    parts_.low->write(remainders.low);
    parts_.rounded_up->write(remainders.rounded_up);
    Tensor model = room(numel(), DType::BF16, device);
    ops::copy(from, model);
    parts_.model->write(model);
  }
  i64 offset() const override { return parts_.offset; }
  i64 elements() const { return 2 * parts_.low->numel(); }
  ParamRemainders remainders_on(Device& device) const {
    return {.low = room(elements() / 2, DType::I32, device), .rounded_up = room(elements() / 32, DType::I32, device)};
  }
  /// Returns all elements of its blocks.
  Tensor joined(const Tensor& model) const {
    ParamRemainders remainders = remainders_on(model.device());
    parts_.low->read(remainders.low);
    parts_.rounded_up->read(remainders.rounded_up);
    Tensor master = room(elements(), DType::F32, model.device());
    ops::join_param_remainders(model, remainders, master);
    return master;
  }

  MasterParts parts_;
};

}  // namespace

std::shared_ptr<TensorStorage> reconstructed_master(MasterParts parts) {
  return std::make_shared<ReconstructedMaster>(std::move(parts));
}

}  // namespace mcpp
