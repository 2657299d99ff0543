#include "tensor/tensor.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace mcpp {

i64 numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), i64{1}, std::multiplies<>());
}

Buffer::Buffer(i64 bytes, Device& device, MemoryClass c)
    : device_(device), bytes_(bytes), class_(c), data_(device.allocate(bytes, c)) {}

Buffer::~Buffer() {
  device_.release(data_, bytes_, class_);
}

Tensor Tensor::empty(Shape shape, DType dtype, Device& device, MemoryClass c) {
  MCPP_CHECK(std::ranges::all_of(shape, [](i64 n) { return n >= 0; }), "shape ", shape);
  Tensor t;
  t.storage_ = std::make_shared<Buffer>(mcpp::numel(shape) * size_of(dtype), device, c);
  t.shape_ = std::move(shape);
  t.dtype_ = dtype;
  return t;
}

i64 Tensor::dim(i64 axis) const {
  const i64 index = axis < 0 ? axis + rank() : axis;
  MCPP_CHECK(index >= 0 && index < rank(), "axis ", axis, " of ", shape_);
  return shape_[static_cast<std::size_t>(index)];
}

Tensor Tensor::view(Shape shape) const {
  for (i64& size : shape) {
    if (size != -1) continue;
    size = 1;
    const i64 others = mcpp::numel(shape);
    size = others == 0 ? 0 : numel() / others;
  }
  MCPP_CHECK(mcpp::numel(shape) == numel(), shape_, " cannot be viewed as ", shape);
  Tensor t = *this;
  t.shape_ = std::move(shape);
  return t;
}

Tensor Tensor::slice(i64 begin, i64 end) const {
  MCPP_CHECK(rank() > 0 && 0 <= begin && begin <= end && end <= dim(0), "rows ", begin, " to ", end, " of ", shape_);
  Tensor t = *this;
  t.shape_[0] = end - begin;
  t.offset_ += begin * (dim(0) == 0 ? 0 : numel() / dim(0));
  return t;
}

Tensor Tensor::flat(i64 begin, i64 count) const {
  MCPP_CHECK(0 <= begin && count >= 0 && begin + count <= numel(), count, " elements from ", begin, " of ", shape_);
  Tensor t = *this;
  t.shape_ = {count};
  t.offset_ += begin;
  return t;
}

Tensor Tensor::reinterpret(DType dtype) const {
  const i64 size = size_of(dtype), first = offset_ * size_of(dtype_);
  MCPP_CHECK(first % size == 0 && bytes() % size == 0, bytes(), " bytes at byte ", first,
             " cannot be reinterpreted as ", name_of(dtype));
  Tensor t = *this;
  t.shape_ = {bytes() / size};
  t.offset_ = first / size;
  t.dtype_ = dtype;
  return t;
}

}  // namespace mcpp
