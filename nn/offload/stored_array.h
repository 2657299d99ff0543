// Arrays of values that persist between steps, such as weights and optimizer states, in any storage form and location.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "base/io/scratch_file.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Form in which values are stored. Plain: fp32, or fp64 in fp64 models. Signed to PositiveE5m2: one byte per value
/// (QuantizedRange, tensor/ops/low_precision/quantize.h). Remainder: master weights minus the model's bf16 weights
/// (tensor/ops/low_precision/param_remainders.h). Model: not stored; the values are the model's bf16 weights.
enum class StorageForm : u8 {
  Plain,
  Bf16,
  Signed,
  NonNegative,
  E4m3,
  E5m2,
  PositiveE4m3,
  PositiveE5m2,
  Remainder,
  Model
};

/// Type and length of a vector.
struct VectorSpec {
  DType dtype;
  i64 count;

  i64 bytes() const { return count * size_of(dtype); }
};

/// Returns the vectors that store `count` values, whose plain dtype is `wide`. `count` must be a multiple of
/// kQuantizedBlock unless the form is Plain.
std::vector<VectorSpec> stored_vectors(StorageForm form, DType wide, i64 count);

/// Flat array of values in a tensor, in a file, or encoded in vectors in either of them. A handle like Tensor: copies
/// share the values. Checkpoints contain plain values: reading decodes them exactly and writing rounds them to their
/// form, so a saved array is restored bitwise, and any form can load any other.
class StoredArray {
 public:
  /// Encoded values are read and written in chunks of this many elements, so the extra memory does not grow with the
  /// size.
  static constexpr i64 kChunk = i64{1} << 19;

  StoredArray() = default;  ///< undefined
  explicit StoredArray(Tensor values);
  StoredArray(std::shared_ptr<StoredBytes> bytes, const VectorSpec& values);
  /// Creates an array of `count` values in the form `form` from the vectors of stored_vectors().
  StoredArray(StorageForm form, DType wide, i64 count, std::vector<StoredArray> vectors);
  StoredArray(const StoredArray&) = default;
  StoredArray(StoredArray&&) noexcept = default;
  StoredArray& operator=(StoredArray other) noexcept;
  ~StoredArray() = default;

  bool defined() const { return tensor_.defined() || bytes_ || !vectors_.empty(); }
  /// Returns the dtype of the values that read() returns and write() accepts.
  DType dtype() const { return dtype_; }
  i64 numel() const { return count_; }
  /// Returns a tensor that shares the values if they are plain and in tensor memory; otherwise undefined.
  Tensor tensor() const { return tensor_; }
  /// Returns a view of elements [begin, begin + count).
  StoredArray part(i64 begin, i64 count) const;
  /// Returns a Remainder array that is associated with the model's weights of the same elements, without which it
  /// cannot be read or written.
  StoredArray with_model(StoredArray model) const;
  /// Returns a snapshot of the current values, unaffected by later writes. It may be read by any thread and must be
  /// released before the next snapshot is taken.
  StoredArray snapshot() const;

  /// Reads or writes all values; `to` and `from` are in host memory and have this dtype and size. Writing a Remainder
  /// writes the model's weights, too.
  void read(Tensor& to) const;
  void write(const Tensor& from) const;

  /// Returns the values of complete blocks in tensor memory: tensor(), or a decoded copy on the same device. After
  /// changing a copy, the caller must call encode(). For a Remainder and for the form Model, `model` has the model's
  /// weights of these elements.
  Tensor decode(const Tensor& model = {}) const;
  void encode(const Tensor& values) const;

 private:
  struct Blocks;
  Blocks read_blocks(Device& host) const;
  /// Calls f(chunk, begin) for chunks at block boundaries.
  template <class F>
  void for_each_chunk(const F& f) const;

  StorageForm form_ = StorageForm::Plain;
  DType dtype_ = DType::F32;
  i64 offset_ = 0;  // index of the first element in its block, or in bytes_
  i64 count_ = 0;
  std::shared_ptr<CpuDevice> host_;  // owner of the tensor's memory in a snapshot; destroyed after the tensor
  Tensor tensor_;
  std::shared_ptr<StoredBytes> bytes_;
  std::vector<StoredArray> vectors_;  // encoded vectors from a block boundary on; then the weights of a Remainder
};

}  // namespace mcpp
