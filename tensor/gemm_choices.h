// Which algorithm of a matrix product library was found fastest for which product, and that list as a text file. The
// numbers of an algorithm mean something to the library alone.
#pragma once
#include <array>
#include <compare>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace mcpp {

/// Factors in fp8: b in E4M3, and a in this format.
enum class GemmFp8 : u8 { None, E4m3, E5m2 };

/// What becomes of a product before it is written: its GELU, without and with a bias added first, beside what GELU got;
/// or the product times the gradient of GELU there.
enum class GemmEpilogue : u8 { None, Gelu, BiasGelu, GeluGradient };

/// All that a product's speed depends on. c[m, n] = op(a) op(b) (+ c when `accumulate`), a and b of type `in`. One with
/// a group of rows has 0 for their number, be it m or k: what it chooses is for all groups, so that no row's result
/// depends on how many others there are.
struct GemmKey {
  DType in = DType::F32, out = DType::F32;
  bool tf32 = false;  ///< fp32 factors are rounded to TF32
  bool transpose_a = false, transpose_b = false, accumulate = false;
  i64 m = 0, n = 0, k = 0;
  i64 alignment = 0;            ///< bytes: a power of two that divides all three addresses, see gemm_alignment()
  GemmFp8 fp8 = GemmFp8::None;  ///< `in` is then bf16, what factors were rounded from
  GemmEpilogue epilogue = GemmEpilogue::None;

  auto operator<=>(const GemmKey&) const = default;
};

/// "bf16 fp32 NT 4096 768 3072 add 16": types in (or tf32, or a's in fp8) and out, transposes of a and b, m, n, k, add
/// or set, alignment; then "gelu", "bias+gelu" or "dgelu", if it has an epilogue.
std::string to_text(const GemmKey& key);

/// An algorithm as the library describes it, and the bytes of workspace that it needs.
struct GemmChoice {
  std::array<u64, 8> algorithm{};
  i64 workspace = 0;

  bool operator==(const GemmChoice&) const = default;
};

/// The largest power of two, up to 16 bytes (more makes no difference to speed), that divides every address. The cap
/// keeps the choice of an algorithm, and with it the last bits of results, independent of where buffers happen to be.
template <class... Pointers>
i64 gemm_alignment(const Pointers*... pointers) {
  const u64 bits = (reinterpret_cast<std::uintptr_t>(pointers) | ... | u64{16});
  return static_cast<i64>(bits & (~bits + 1));
}

using GemmChoices = std::map<GemmKey, GemmChoice>;

/// One line per choice below a header that names `platform`: the library's version and the GPU.
std::string to_text(const GemmChoices& choices, std::string_view platform);
/// The choices in `text`; none when they were made on another platform, where they mean nothing. BadInput, with `name`
/// (of the file) and the line, when the text is none of to_text()'s.
GemmChoices gemm_choices_from_text(std::string_view text, std::string_view platform, std::string_view name);
/// Of several texts; where two choose for the same product the earlier one counts.
GemmChoices merged_gemm_choices(std::span<const std::string> texts, std::string_view platform, std::string_view name);

}  // namespace mcpp
