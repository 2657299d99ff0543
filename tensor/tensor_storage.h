// Tensor storage outside of tensor memory: on a disk, or in an encoded form.
#pragma once
#include <algorithm>
#include <memory>

#include "tensor/tensor.h"

namespace mcpp {

class TensorStorage {
 public:
  virtual ~TensorStorage() = default;

  /// Dtype of the values returned by read() and accepted by write().
  virtual DType dtype() const = 0;
  virtual i64 numel() const = 0;
  /// Returns a tensor that shares the storage if it is in tensor memory; otherwise undefined.
  virtual Tensor tensor() const { return {}; }
  /// Reads or writes all values; `to` and `from` are in host memory and have this dtype and size.
  virtual void read(Tensor& to) const = 0;
  virtual void write(const Tensor& from) = 0;
  /// Returns a view of elements [begin, begin + count).
  virtual std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const = 0;
  /// Returns a snapshot of the current values, unaffected by later writes. It may be read by any thread and must be
  /// released before the next snapshot is taken.
  virtual std::shared_ptr<const TensorStorage> snapshot() const = 0;
};

// Tensor storage whose encoding differs from that of checkpoints.

/// Base class of encoded storage. Elements are decoded and encoded in pieces, so the extra memory does not grow with
/// the size. A block of elements that shares a scale is never divided between pieces.
class EncodedStorage : public TensorStorage {
 public:
  static constexpr i64 kPiece = i64{1} << 19;

  void read(Tensor& to) const final {
    for_each_piece([&](i64 begin, i64 count) {
      Tensor piece = to.flat(begin, count);
      count == numel() ? decode(piece) : part(begin, count)->read(piece);
    });
  }
  void write(const Tensor& from) final {
    for_each_piece([&](i64 begin, i64 count) {
      const Tensor piece = from.flat(begin, count);
      count == numel() ? encode(piece) : part(begin, count)->write(piece);
    });
  }

 protected:
  /// Decode or encode all elements, at most kPiece.
  virtual void decode(Tensor& to) const = 0;
  virtual void encode(const Tensor& from) = 0;
  /// Returns the index of the first element in its block. Block sizes divide kPiece.
  virtual i64 offset() const = 0;

 private:
  template <class F>
  void for_each_piece(const F& f) const {
    for (i64 begin = 0, end = 0; begin < numel(); begin = end) {
      end = std::min(numel(), (offset() + begin) / kPiece * kPiece + kPiece - offset());
      f(begin, end - begin);
    }
  }
};

}  // namespace mcpp
