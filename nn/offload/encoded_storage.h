// Tensor storage whose encoding differs from that of checkpoints.
#pragma once
#include <algorithm>

#include "tensor/tensor_storage.h"

namespace mcpp {

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
