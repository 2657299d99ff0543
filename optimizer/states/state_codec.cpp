#include "optimizer/states/state_codec.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/integer_math.h"
#include "tensor/ops/ops.h"
#include "tensor/tensor_storage.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

Tensor make_zeros(i64 count, DType type, Device& device) {
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
    return make_reconstructed_master({.model = parts_.model->part(begin, count),
                                      .low = parts_.low->part(first / 2, (end - first) / 2),
                                      .rounded_up = parts_.rounded_up->part(first / 32, (end - first) / 32),
                                      .offset = parts_.offset + begin - first});
  }
  std::shared_ptr<const TensorStorage> snapshot() const override {
    const auto take_snapshot = [](const std::shared_ptr<TensorStorage>& values) {
      return std::const_pointer_cast<TensorStorage>(values->snapshot());
    };
    return make_reconstructed_master(
        {take_snapshot(parts_.model), take_snapshot(parts_.low), take_snapshot(parts_.rounded_up), parts_.offset});
  }

 private:
  void decode(Tensor& to) const override {
    Tensor model = make_zeros(elements(), DType::BF16, to.device());
    Tensor own = model.flat(parts_.offset, numel());
    parts_.model->read(own);
    std::memcpy(to.raw(), join_blocks(model).flat(parts_.offset, numel()).raw(), static_cast<std::size_t>(to.bytes()));
  }
  /// Remainders of other elements in the blocks are preserved for any model weights, so zeros are used for those.
  void encode(const Tensor& from) override {
    Device& device = from.device();
    Tensor master = join_blocks(make_zeros(elements(), DType::BF16, device));
    std::memcpy(master.flat(parts_.offset, numel()).raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    ParamRemainders remainders = allocate_remainders(device);
    ops::param_remainders(master, remainders);
    parts_.low->write(remainders.low);
    parts_.rounded_up->write(remainders.rounded_up);
    Tensor model = make_zeros(numel(), DType::BF16, device);
    ops::copy(from, model);
    parts_.model->write(model);
  }
  i64 offset() const override { return parts_.offset; }
  i64 elements() const { return 2 * parts_.low->numel(); }
  ParamRemainders allocate_remainders(Device& device) const {
    return {.low = make_zeros(elements() / 2, DType::I32, device),
            .rounded_up = make_zeros(elements() / 32, DType::I32, device)};
  }
  /// Returns all elements of the blocks.
  Tensor join_blocks(const Tensor& model) const {
    ParamRemainders remainders = allocate_remainders(model.device());
    parts_.low->read(remainders.low);
    parts_.rounded_up->read(remainders.rounded_up);
    Tensor master = make_zeros(elements(), DType::F32, model.device());
    ops::join_param_remainders(model, remainders, master);
    return master;
  }

  MasterParts parts_;
};

}  // namespace

std::shared_ptr<TensorStorage> make_reconstructed_master(MasterParts parts) {
  return std::make_shared<ReconstructedMaster>(std::move(parts));
}

namespace {

constexpr i64 kBlock = kQuantizedBlock;

bool is_quantized(StateForm form) {
  return form == StateForm::Signed || form == StateForm::NonNegative;
}

QuantizedRange range_of(StateForm form) {
  return form == StateForm::NonNegative ? QuantizedRange::NonNegative : QuantizedRange::Signed;
}

Tensor make_workspace(i64 count, DType type, Device& device) {
  return Tensor::empty({count}, type, device, MemoryClass::Workspace);
}

/// View of an encoded state, for reading and writing in host memory.
class EncodedState final : public EncodedStorage {
 public:
  /// `vectors`: the state's vectors from the block that contains element 0 on. `offset`: offset of element 0 in that
  /// block.
  EncodedState(StateForm form, DType wide, std::vector<std::shared_ptr<TensorStorage>> vectors, i64 offset, i64 count)
      : form_(form), wide_(wide), vectors_(std::move(vectors)), offset_(offset), count_(count) {}

  DType dtype() const override { return wide_; }
  i64 numel() const override { return count_; }
  std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const override {
    const i64 first = (offset_ + begin) / kBlock * kBlock;
    const i64 end = round_up(offset_ + begin + count, kBlock);
    std::vector<std::shared_ptr<TensorStorage>> vectors;
    if (form_ == StateForm::Bf16)
      vectors = {vectors_[0]->part(first, end - first)};
    else
      vectors = {vectors_[0]->part(first / 4, (end - first) / 4),
                 vectors_[1]->part(first / kBlock, (end - first) / kBlock)};
    return std::make_shared<EncodedState>(form_, wide_, std::move(vectors), offset_ + begin - first, count);
  }
  std::shared_ptr<const TensorStorage> snapshot() const override {
    std::vector<std::shared_ptr<TensorStorage>> vectors;
    for (const auto& vector : vectors_) vectors.push_back(std::const_pointer_cast<TensorStorage>(vector->snapshot()));
    return std::make_shared<EncodedState>(form_, wide_, std::move(vectors), offset_, count_);
  }

 private:
  void decode(Tensor& to) const override {
    const Tensor blocks = decode_blocks(to.device());
    std::memcpy(to.raw(), blocks.flat(offset_, count_).raw(), static_cast<std::size_t>(to.bytes()));
  }
  void encode(const Tensor& from) override {
    Tensor blocks = decode_blocks(from.device());  // may include other elements at both ends
    std::memcpy(blocks.flat(offset_, count_).raw(), from.raw(), static_cast<std::size_t>(from.bytes()));
    if (form_ == StateForm::Bf16) {
      Tensor narrow = make_workspace(blocks.numel(), DType::BF16, from.device());
      ops::copy(blocks, narrow);
      vectors_[0]->write(narrow);
      return;
    }
    Quantized quantized = allocate_quantized(from.device());
    ops::quantize(blocks, quantized);
    vectors_[0]->write(quantized.codes);
    vectors_[1]->write(quantized.scales);
  }
  i64 offset() const override { return offset_; }
  i64 elements() const { return form_ == StateForm::Bf16 ? vectors_[0]->numel() : vectors_[1]->numel() * kBlock; }
  Quantized allocate_quantized(Device& device) const {
    return {.codes = make_workspace(elements() / 4, DType::I32, device),
            .scales = make_workspace(elements() / kBlock, DType::F32, device),
            .range = range_of(form_)};
  }
  /// Returns all elements of the blocks.
  Tensor decode_blocks(Device& device) const {
    Tensor wide = make_workspace(elements(), wide_, device);
    if (form_ == StateForm::Bf16) {
      Tensor narrow = make_workspace(elements(), DType::BF16, device);
      vectors_[0]->read(narrow);
      ops::copy(narrow, wide);
      return wide;
    }
    Quantized quantized = allocate_quantized(device);
    vectors_[0]->read(quantized.codes);
    vectors_[1]->read(quantized.scales);
    ops::dequantize(quantized, wide);
    return wide;
  }

  StateForm form_;
  DType wide_;
  std::vector<std::shared_ptr<TensorStorage>> vectors_;
  i64 offset_, count_;
};

/// Returns a part of the vectors of a quantized state.
Quantized slice_quantized(std::span<const Tensor> vectors, StateForm form, i64 first, i64 count) {
  return {.codes = vectors[0].flat(first / 4, count / 4),
          .scales = vectors[1].flat(first / kBlock, count / kBlock),
          .range = range_of(form)};
}

static_assert(kRemainderBlock == kBlock);

ParamRemainders slice_remainders(std::span<const Tensor> vectors, i64 first, i64 count) {
  return {.low = vectors[0].flat(first / 2, count / 2), .rounded_up = vectors[1].flat(first / 32, count / 32)};
}

}  // namespace

StateCodec::StateCodec(std::vector<StateForm> forms, DType wide) : wide_(wide) {
  std::size_t vector = 0;
  for (const StateForm form : forms) {
    MCPP_CHECK(form != StateForm::Remainder || states_.empty(), "only master weights have remainders");
    states_.push_back({form, vector});
    vector += is_quantized(form) || form == StateForm::Remainder ? 2 : 1;
    is_plain_ &= form == StateForm::AccumulateType;
  }
  MCPP_CHECK(is_plain_ || wide == DType::F32, "low-precision states of a model of ", name_of(wide));
}

std::vector<StateVector> StateCodec::vectors(i64 count) const {
  std::vector<StateVector> all;
  MCPP_CHECK(is_plain_ || count % kBlock == 0, count, " elements are not a multiple of the block size");
  for (const State& state : states_) {
    if (is_quantized(state.form))
      all.insert(all.end(), {{DType::I32, count / 4}, {DType::F32, count / kBlock}});
    else if (state.form == StateForm::Remainder)
      all.insert(all.end(), {{DType::I32, count / 2}, {DType::I32, count / 32}});
    else
      all.push_back({state.form == StateForm::Bf16 ? DType::BF16 : wide_, count});
  }
  return all;
}

std::vector<Tensor> StateCodec::decode(std::span<const Tensor> vectors, i64 first, i64 count) const {
  std::vector<Tensor> states;
  for (const State& state : states_) {
    const Tensor& stored = vectors[state.vector];
    if (state.form == StateForm::AccumulateType) {
      states.push_back(stored.flat(first, count));
      continue;
    }
    Tensor& wide = states.emplace_back(make_workspace(count, wide_, stored.device()));
    if (state.form == StateForm::Bf16)
      ops::copy(stored.flat(first, count), wide);
    else if (is_quantized(state.form))
      ops::dequantize(slice_quantized(vectors.subspan(state.vector), state.form, first, count), wide);
  }
  return states;
}

void StateCodec::encode(std::span<const Tensor> states, std::span<const Tensor> vectors, i64 first) const {
  for (std::size_t s = 0; s < states_.size(); ++s) {
    const auto [form, vector] = states_[s];
    const i64 count = states[s].numel();
    if (form == StateForm::Bf16) {
      Tensor stored = vectors[vector].flat(first, count);
      ops::copy(states[s], stored);
    } else if (is_quantized(form)) {
      Quantized stored = slice_quantized(vectors.subspan(vector), form, first, count);
      ops::quantize(states[s], stored);
    }
  }
}

void StateCodec::join(std::span<const Tensor> vectors, i64 first, const Tensor& model, Tensor& master) const {
  ops::join_param_remainders(model, slice_remainders(vectors, first, master.numel()), master);
}

void StateCodec::split(const Tensor& master, std::span<const Tensor> vectors, i64 first) const {
  ParamRemainders stored = slice_remainders(vectors, first, master.numel());
  ops::param_remainders(master, stored);
}

std::shared_ptr<TensorStorage> StateCodec::stored_view(StateStore& store, std::size_t segment, std::size_t state,
                                                       i64 first, i64 count,
                                                       const std::shared_ptr<TensorStorage>& model) const {
  const auto [form, vector] = states_[state];
  if (form == StateForm::AccumulateType) return store.stored_view(segment, vector, first, count);
  const i64 begin = first / kBlock * kBlock, end = round_up(first + count, kBlock);
  if (form == StateForm::Remainder)
    return make_reconstructed_master(
        {.model = model,
         .low = store.stored_view(segment, vector, begin / 2, (end - begin) / 2),
         .rounded_up = store.stored_view(segment, vector + 1, begin / 32, (end - begin) / 32),
         .offset = first - begin});
  std::vector<std::shared_ptr<TensorStorage>> vectors;
  if (form == StateForm::Bf16)
    vectors = {store.stored_view(segment, vector, begin, end - begin)};
  else
    vectors = {store.stored_view(segment, vector, begin / 4, (end - begin) / 4),
               store.stored_view(segment, vector + 1, begin / kBlock, (end - begin) / kBlock)};
  return std::make_shared<EncodedState>(form, wide_, std::move(vectors), first - begin, count);
}

}  // namespace mcpp
