// Fastest known algorithm of the GEMM library for each GEMM, and its text file format. Algorithm descriptions
// are opaque to this program.
#pragma once
#include <array>
#include <compare>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace mcpp {

/// Fp8 format of `a`; `b` is always E4M3.
enum class GemmFp8 : u8 { None, E4m3, E5m2 };

/// Scales of the factors of a low-precision GEMM: one for each full matrix, or those of the recipe `blockwise` with
/// vectors in a and squares in b or with vectors in both, of `mxfp8`, or of `nvfp4`, whose factors are in E2M1.
enum class GemmBlocks : u8 { None, Blockwise, BlockwiseVectors, Mxfp8, Nvfp4 };

/// Operation fused into the GEMM's output: GELU, without or with a bias added first (its input is also stored), or
/// multiplication by the gradient of GELU at that input.
enum class GemmEpilogue : u8 { None, Gelu, BiasGelu, GeluGradient };

/// Parameters that determine a GEMM's speed: c[m, n] = op(a) op(b) (+ c if `accumulate`), with a and b of type `in`.
/// Grouped GEMMs use 0 for the dimension (m or k) that varies by group: all groups share one choice, so that the result
/// for a row does not depend on the size of its group.
struct GemmKey {
  DType in = DType::F32, out = DType::F32;
  bool tf32 = false;  ///< fp32 factors are rounded to TF32
  bool transpose_a = false, transpose_b = false, accumulate = false;
  i64 m = 0, n = 0, k = 0;
  i64 alignment = 0;            ///< bytes: a power of two that divides all three addresses, see gemm_alignment()
  GemmFp8 fp8 = GemmFp8::None;  ///< `in` is then bf16, the type before rounding to fp8
  GemmEpilogue epilogue = GemmEpilogue::None;
  GemmBlocks blocks = GemmBlocks::None;  ///< `in` is bf16; Nvfp4: without `fp8`, others: with it

  auto operator<=>(const GemmKey&) const = default;
};

/// Formats a key as "bf16 fp32 NT 4096 768 3072 add 16": input type, output type, transposes of a and b, m, n, k, add
/// or set, alignment; then "gelu", "bias+gelu" or "dgelu" if it has an epilogue. Instead of the input type, TF32 GEMMs
/// have "tf32", fp8 GEMMs the format of a, after "blockwise", "blockwise_vectors" or "mxfp8" if it is block-scaled, and
/// NVFP4 GEMMs "nvfp4".
std::string to_text(const GemmKey& key);

/// Algorithm in the library's own description, and the workspace it needs in bytes.
struct GemmAlgo {
  std::array<u64, 8> algorithm{};
  i64 workspace = 0;

  bool operator==(const GemmAlgo&) const = default;
};

/// Returns the largest power of two up to 16 bytes that divides every address. Higher alignment does not affect speed;
/// because of the cap, the choice of an algorithm, and thus the last bits of results, do not depend on the addresses of
/// buffers.
template <class... Pointers>
i64 gemm_alignment(const Pointers*... pointers) {
  const u64 bits = (reinterpret_cast<std::uintptr_t>(pointers) | ... | u64{16});
  return static_cast<i64>(bits & (~bits + 1));
}

using GemmAlgoCache = std::map<GemmKey, GemmAlgo>;

/// Formats one line per choice under a header that names `platform`: the library version and the GPU.
std::string to_text(const GemmAlgoCache& choices, std::string_view platform);
/// Parses the choices in `text`; returns none if they were made on a different platform. Throws BadInput, with `name`
/// (of the file) and the line, if the text is malformed.
GemmAlgoCache gemm_choices_from_text(std::string_view text, std::string_view platform, std::string_view name);
/// Merges the choices of several texts; for the same GEMM the earliest text takes precedence.
GemmAlgoCache merged_gemm_choices(std::span<const std::string> texts, std::string_view platform, std::string_view name);

}  // namespace mcpp
