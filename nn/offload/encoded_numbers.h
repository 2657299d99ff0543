// Numbers that are kept in another form than checkpoints hold.
#pragma once
#include <algorithm>

#include "tensor/stored_numbers.h"

namespace mcpp {

/// Decoded and encoded piece by piece: what that needs for itself is little, however many numbers there are. A block of
/// them, which shares a scale, is in one piece.
class EncodedNumbers : public StoredNumbers {
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
  /// All of them, at most kPiece.
  virtual void decode(Tensor& to) const = 0;
  virtual void encode(const Tensor& from) = 0;
  /// Of the first one in its block, whose size divides kPiece.
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
