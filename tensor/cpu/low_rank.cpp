#include "tensor/ops/low_rank.h"

#include <cmath>
#include <cstring>

namespace mcpp {
namespace {

/// Columns of a row-major matrix; sums in fp64, by row.
template <class T>
class Columns {
 public:
  explicit Columns(Tensor& x) : x_(x.data<T>()), rows_(x.dim(0)), columns_(x.dim(1)) {}

  i64 count() const { return columns_; }
  double product(i64 j, i64 k) const {
    double sum = 0;
    for (i64 i = 0; i < rows_; ++i) sum += static_cast<double>(at(i, j)) * static_cast<double>(at(i, k));
    return sum;
  }
  double norm(i64 j) const { return std::sqrt(product(j, j)); }
  /// Subtracts the projections on the preceding columns from column j.
  void subtract_projections(i64 j) {
    for (i64 k = 0; k < j; ++k) {
      const double common = product(j, k);
      for (i64 i = 0; i < rows_; ++i) at(i, j) = static_cast<T>(at(i, j) - common * at(i, k));
    }
  }
  void scale(i64 j, double factor) {
    for (i64 i = 0; i < rows_; ++i) at(i, j) = static_cast<T>(at(i, j) * factor);
  }
  void set_random_direction(i64 j, int attempt) {
    for (i64 i = 0; i < rows_; ++i) at(i, j) = random_sign(i, j, attempt);
  }

 private:
  T& at(i64 row, i64 column) const { return x_[row * columns_ + column]; }

  T* x_;
  i64 rows_, columns_;
};

template <class T>
void orthonormalize_columns(Columns<T> x) {
  for (i64 j = 0; j < x.count(); ++j) {
    for (int attempt = 0; attempt < kDirectionAttempts; ++attempt) {
      if (attempt > 0) x.set_random_direction(j, attempt);
      const double before = x.norm(j);
      x.subtract_projections(j);
      x.subtract_projections(j);
      const double left = x.norm(j);
      if (left <= kMinRelativeResidual * before) continue;
      x.scale(j, 1 / left);
      break;
    }
  }
}

}  // namespace

template <>
void LowRankKernels<DeviceType::Cpu>::orthonormalize(Tensor& x) {
  if (x.dtype() == DType::F64)
    orthonormalize_columns(Columns<double>(x));
  else
    orthonormalize_columns(Columns<float>(x));
}

template <>
void LowRankKernels<DeviceType::Cpu>::copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor) {
  if (std::isfinite(*factor.data<double>())) std::memcpy(to.raw(), from.raw(), static_cast<std::size_t>(to.bytes()));
}

}  // namespace mcpp
