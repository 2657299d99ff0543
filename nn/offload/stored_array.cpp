#include "nn/offload/stored_array.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/integer_math.h"
#include "tensor/ops/low_precision/param_remainders.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr i64 kBlock = kQuantizedBlock;
static_assert(kRemainderBlock == kBlock && StoredArray::kChunk % kBlock == 0);

Tensor make_workspace(const VectorSpec& vector, Device& device) {
  return Tensor::empty({vector.count}, vector.dtype, device, MemoryClass::Workspace);
}

QuantizedRange range_of(StorageForm form) {
  switch (form) {
    case StorageForm::NonNegative:
      return QuantizedRange::NonNegative;
    case StorageForm::E4m3:
      return QuantizedRange::E4m3;
    case StorageForm::E5m2:
      return QuantizedRange::E5m2;
    case StorageForm::PositiveE4m3:
      return QuantizedRange::PositiveE4m3;
    case StorageForm::PositiveE5m2:
      return QuantizedRange::PositiveE5m2;
    default:
      return QuantizedRange::Signed;
  }
}

Quantized quantized(StorageForm form, const std::vector<StoredArray>& vectors) {
  return {.codes = vectors[0].tensor(), .scales = vectors[1].tensor(), .range = range_of(form)};
}

ParamRemainders remainders(const std::vector<StoredArray>& vectors) {
  return {.low = vectors[0].tensor(), .rounded_up = vectors[1].tensor()};
}

}  // namespace

std::vector<VectorSpec> stored_vectors(StorageForm form, DType wide, i64 count) {
  if (form == StorageForm::Plain) return {{wide, count}};
  MCPP_CHECK(wide == DType::F32, "low-precision states of a model of ", name_of(wide));
  MCPP_CHECK(count % kBlock == 0, count, " elements are not a multiple of the block size");
  if (form == StorageForm::Model) return {};
  if (form == StorageForm::Bf16) return {{DType::BF16, count}};
  if (form == StorageForm::Remainder) return {{DType::I32, count / 2}, {DType::I32, count / 32}};
  return {{DType::I32, count / 4}, {DType::F32, count / kBlock}};
}

StoredArray::StoredArray(Tensor values) : dtype_(values.dtype()), count_(values.numel()), tensor_(std::move(values)) {}

StoredArray::StoredArray(std::shared_ptr<StoredBytes> bytes, const VectorSpec& values)
    : dtype_(values.dtype), count_(values.count), bytes_(std::move(bytes)) {}

StoredArray::StoredArray(StorageForm form, DType wide, i64 count, std::vector<StoredArray> vectors)
    : form_(form), dtype_(wide), count_(count), vectors_(std::move(vectors)) {
  if (form == StorageForm::Plain) *this = StoredArray(vectors_.front());
}

StoredArray& StoredArray::operator=(StoredArray other) noexcept {
  std::swap(form_, other.form_);
  std::swap(dtype_, other.dtype_);
  std::swap(offset_, other.offset_);
  std::swap(count_, other.count_);
  std::swap(host_, other.host_);
  std::swap(tensor_, other.tensor_);
  std::swap(bytes_, other.bytes_);
  std::swap(vectors_, other.vectors_);
  return *this;
}

StoredArray StoredArray::part(i64 begin, i64 count) const {
  StoredArray part = *this;
  part.count_ = count;
  if (tensor_.defined()) part.tensor_ = tensor_.flat(begin, count);
  if (bytes_) part.offset_ += begin;
  if (vectors_.empty()) return part;
  const i64 first = (offset_ + begin) / kBlock * kBlock, end = round_up(offset_ + begin + count, kBlock);
  const std::vector<VectorSpec> before = stored_vectors(form_, dtype_, first),
                                own = stored_vectors(form_, dtype_, end - first);
  for (std::size_t v = 0; v < own.size(); ++v) part.vectors_[v] = vectors_[v].part(before[v].count, own[v].count);
  if (vectors_.size() > own.size()) part.vectors_.back() = vectors_.back().part(begin, count);
  part.offset_ = offset_ + begin - first;
  return part;
}

StoredArray StoredArray::with_model(StoredArray model) const {
  StoredArray array = *this;
  array.vectors_.push_back(std::move(model));
  return array;
}

StoredArray StoredArray::snapshot() const {
  StoredArray copy = *this;
  if (tensor_.defined()) {
    copy.host_ = std::make_shared<CpuDevice>();
    copy.tensor_ = Tensor::empty({count_}, dtype_, *copy.host_, MemoryClass::Other);
    read_bytes(tensor_, copy.tensor_.raw());
  }
  if (bytes_) copy.bytes_ = bytes_->snapshot();
  for (StoredArray& vector : copy.vectors_) vector = vector.snapshot();
  return copy;
}

template <class F>
void StoredArray::for_each_chunk(const F& f) const {
  for (i64 begin = 0, end = 0; begin < count_; begin = end) {
    end = std::min(count_, (offset_ + begin) / kChunk * kChunk + kChunk - offset_);
    f(part(begin, end - begin), begin);
  }
}

/// Blocks of an encoded array in host memory, and their values.
struct StoredArray::Blocks {
  StoredArray stored;
  Tensor values;
};

/// Weights outside of the array are taken as 0: the remainders of these elements are preserved for any weights.
StoredArray::Blocks StoredArray::read_blocks(Device& host) const {
  const i64 count = round_up(offset_ + count_, kBlock);
  std::vector<StoredArray> vectors;
  for (const VectorSpec& vector : stored_vectors(form_, dtype_, count)) {
    Tensor copy = make_workspace(vector, host);
    vectors_[vectors.size()].read(copy);
    vectors.emplace_back(copy);
  }
  const StoredArray blocks(form_, dtype_, count, std::move(vectors));
  if (form_ != StorageForm::Remainder) return {blocks, blocks.decode()};
  const Tensor model = Tensor::zeros({count}, DType::BF16, host, MemoryClass::Workspace);
  Tensor weights = model.flat(offset_, count_);
  vectors_.back().read(weights);
  return {blocks, blocks.decode(model)};
}

void StoredArray::read(Tensor& to) const {
  if (tensor_.defined()) return read_bytes(tensor_, to.raw());
  if (bytes_) return bytes_->read(offset_ * size_of(dtype_), host_bytes(to));
  for_each_chunk([&](const StoredArray& chunk, i64 begin) {
    const Tensor values = chunk.read_blocks(to.device()).values.flat(chunk.offset_, chunk.count_);
    std::ranges::copy(host_bytes(values), host_bytes(to.flat(begin, chunk.count_)).begin());
  });
}

void StoredArray::write(const Tensor& from) const {
  if (tensor_.defined()) {
    Tensor to = tensor_;
    return write_bytes(from.raw(), to);
  }
  if (bytes_) return bytes_->write(offset_ * size_of(dtype_), host_bytes(from));
  for_each_chunk([&](const StoredArray& chunk, i64 begin) {
    const Tensor values = from.flat(begin, chunk.count_);
    const Blocks blocks = chunk.read_blocks(from.device());
    std::ranges::copy(host_bytes(values), host_bytes(blocks.values.flat(chunk.offset_, chunk.count_)).begin());
    blocks.stored.encode(blocks.values);
    const std::vector<StoredArray>& vectors = blocks.stored.vectors_;
    for (std::size_t v = 0; v < vectors.size(); ++v) chunk.vectors_[v].write(vectors[v].tensor_);
    if (form_ != StorageForm::Remainder) return;
    Tensor model = make_workspace({DType::BF16, chunk.count_}, from.device());
    ops::copy(values, model);
    chunk.vectors_.back().write(model);
  });
}

Tensor StoredArray::decode(const Tensor& model) const {
  if (tensor_.defined()) return tensor_;
  Tensor values = make_workspace({dtype_, count_},
                                 form_ == StorageForm::Model ? model.device() : vectors_.front().tensor_.device());
  if (form_ == StorageForm::Model)
    ops::copy(model, values);
  else if (form_ == StorageForm::Bf16)
    ops::copy(vectors_.front().tensor_, values);
  else if (form_ == StorageForm::Remainder)
    ops::join_param_remainders(model, remainders(vectors_), values);
  else
    ops::dequantize(quantized(form_, vectors_), values);
  return values;
}

void StoredArray::encode(const Tensor& values) const {
  if (tensor_.defined() || form_ == StorageForm::Model) return;
  if (form_ == StorageForm::Bf16) {
    Tensor stored = vectors_.front().tensor_;
    ops::copy(values, stored);
  } else if (form_ == StorageForm::Remainder) {
    ParamRemainders stored = remainders(vectors_);
    ops::param_remainders(values, stored);
  } else {
    Quantized stored = quantized(form_, vectors_);
    ops::quantize(values, stored);
  }
}

}  // namespace mcpp
