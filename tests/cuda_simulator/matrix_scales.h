// Scales of the factors of cuBLASLt's low-precision GEMMs.
#pragma once
#include <cublasLt.h>

#include "tests/cuda_simulator/number_formats.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {

/// Scales of a factor, at the positions that the library's documentation defines.
class MatrixScales {
 public:
  /// `data`: null for factors of 1. `outer`: M for A, N for B. `inner`: K.
  MatrixScales(const void* data, int mode, std::int64_t outer, std::int64_t inner)
      : data_(data), mode_(mode), outer_(outer), inner_(inner) {}

  double at(std::int64_t outer, std::int64_t inner) const {
    if (!data_) return 1;
    return load_element(data_, index(outer, inner / width()), format());
  }
  void record() const {
    if (data_) record_access(data_, static_cast<std::size_t>(count()) * size_of(format()), false);
  }

 private:
  bool is_tiled() const {
    return mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 || mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  }
  Format format() const {
    if (!is_tiled()) return Format::F32;
    return mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 ? Format::E4M3 : Format::E8M0;
  }
  std::int64_t width() const {
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return inner_;
    return mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3   ? 16
           : mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32
                                                               : 128;
  }
  std::int64_t blocks() const { return (inner_ + width() - 1) / width(); }
  std::int64_t blocks_in_fours() const { return (blocks() + 3) / 4 * 4; }
  std::int64_t index(std::int64_t outer, std::int64_t block) const {
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return 0;
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return block * outer_ + outer;
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) return outer / 128 * blocks_in_fours() + block;
    const std::int64_t tile = (block / 4 * 4 + outer / 128 * blocks_in_fours()) * 128, row = outer % 128;
    return tile + (row % 32) * 16 + (row / 32) * 4 + block % 4;
  }
  std::int64_t count() const {
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return 1;
    if (mode_ == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return blocks() * outer_;
    return blocks_in_fours() * ((outer_ + 127) / 128) * (is_tiled() ? 128 : 1);
  }

  const void* data_;
  int mode_;
  std::int64_t outer_, inner_;
};

}  // namespace mcpp::cuda_simulator
