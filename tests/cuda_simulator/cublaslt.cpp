// cuBLASLt: GEMMs interpreted from their descriptors, and rejected if the library's documentation excludes
// them.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/matrix_scales.h"
#include "tests/cuda_simulator/number_formats.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

using i64 = std::int64_t;

// Contents of the library's opaque structures.
struct Layout {
  i64 type, rows, columns, leading_dimension;
};
struct Description {
  int compute, scale_type, transpose_a, transpose_b, epilogue;
  const void* bias;
  void* aux;
  i64 aux_leading_dimension;
  const void *a_scales, *b_scales;
  int a_scale_mode, b_scale_mode, pointer_mode;
};
struct Preference {
  std::uint64_t max_workspace;
  std::uint32_t reductions, alignments[4];
};
/// Algorithm: number of parts of a split sum, and the problem it is valid for.
struct Algorithm {
  std::uint64_t mark, parts, problem_hash, workspace;
  std::uint32_t alignments[4];
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

constexpr std::uint64_t kAlgorithmMark = 0x4D43505047454D4D;

template <class T, class Opaque>
T read(const Opaque* opaque) {
  T value;
  std::memcpy(&value, opaque, sizeof(T));
  return value;
}
template <class T, class Opaque>
void write(Opaque* opaque, const T& value) {
  *opaque = {};
  std::memcpy(static_cast<void*>(opaque), &value, sizeof(T));
}

Format format_of(i64 type) {
  switch (type) {
    case CUDA_R_64F:
      return Format::F64;
    case CUDA_R_32F:
      return Format::F32;
    case CUDA_R_16F:
      return Format::F16;
    case CUDA_R_16BF:
      return Format::BF16;
    case CUDA_R_8F_E4M3:
      return Format::E4M3;
    case CUDA_R_8F_E5M2:
      return Format::E5M2;
    case CUDA_R_4F_E2M1:
      return Format::E2M1;
    default:
      return Format::Unknown;
  }
}
bool is_fp8(i64 type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

bool is_low_precision(i64 type) {
  return is_fp8(type) || type == CUDA_R_4F_E2M1;
}

/// D = epilogue(alpha op(A) op(B) + beta C), all column-major.
struct Problem {
  Description d;
  Layout a, b, c, out;
  i64 m() const { return d.transpose_a == CUBLAS_OP_N ? a.rows : a.columns; }
  i64 k() const { return d.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
  i64 k_of_b() const { return d.transpose_b == CUBLAS_OP_N ? b.rows : b.columns; }
  i64 n() const { return d.transpose_b == CUBLAS_OP_N ? b.columns : b.rows; }
  /// Returns a value that is equal for problems that may share an algorithm.
  std::uint64_t hash() const {
    std::uint64_t hash = static_cast<std::uint64_t>(d.epilogue);
    for (const i64 part : {a.type, b.type, c.type, i64{d.transpose_a}, i64{d.transpose_b}, i64{d.compute},
                           i64{d.a_scale_mode}, i64{d.b_scale_mode}, i64{d.pointer_mode}})
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x9E3779B97F4A7C15u;
    return hash;
  }
};

/// Rules of the library's documentation, section "Narrow Precision Data Types Usage".
const char* scale_mode_refusal(const Problem& p) {
  const int a = p.d.a_scale_mode, b = p.d.b_scale_mode, capability = settings().compute_capability;
  const bool is_fp4 = p.a.type == CUDA_R_4F_E2M1;
  if (is_fp4 || a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 || b == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3) {
    if (!is_fp4 || a != CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 || a != b) return "fp4 needs scales of 16 elements";
    return capability >= 100 ? nullptr : "fp4 needs compute capability 10.0";
  }
  if (a == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F && b == a) return nullptr;
  if (a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && b == a)
    return capability >= 100 ? nullptr : "scales of 32 elements need compute capability 10.0";
  const auto is_128 = [](int mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F || mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  };
  if (!is_128(a) || !is_128(b)) return "a combination of scale modes";
  if (a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && b == a) return "scales of 128 x 128 elements for A and B";
  if (p.m() % 4 != 0 || p.n() % 4 != 0) return "scales of 128 elements need M and N that are multiples of 4";
  return capability == 90 ? nullptr : "scales of 128 elements need compute capability 9.0";
}

const char* low_precision_refusal(const Problem& p) {
  if (is_fp8(p.a.type) != is_fp8(p.b.type) || !is_low_precision(p.a.type) || !is_low_precision(p.b.type))
    return "only one factor is in fp8 or fp4";
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return "E5M2 times E5M2";
  if (p.d.transpose_a != CUBLAS_OP_T || p.d.transpose_b != CUBLAS_OP_N)
    return "fp8 and fp4 need A transposed and B not";
  if (p.d.compute != CUBLAS_COMPUTE_32F) return "fp8 and fp4 need CUBLAS_COMPUTE_32F";
  for (const Layout& l : {p.a, p.b, p.c, p.out}) {
    const Format format = format_of(l.type);
    if (bytes_of(l.rows, format) % 16 != 0 || bytes_of(l.leading_dimension, format) % 16 != 0)
      return "fp8 and fp4 need columns of 16 bytes";
  }
  if (p.out.type != CUDA_R_16BF && p.out.type != CUDA_R_32F) return "the type of D for fp8 and fp4";
  return scale_mode_refusal(p);
}

const char* type_refusal(const Problem& p) {
  if (p.c.type != p.out.type) return "C and D have different types";
  if (is_low_precision(p.a.type) || is_low_precision(p.b.type)) return low_precision_refusal(p);
  if (p.d.a_scale_mode != 0 || p.d.b_scale_mode != 0 || p.d.a_scales || p.d.b_scales) return "scales for these types";
  const bool is_fp64 = p.a.type == CUDA_R_64F;
  if (p.a.type != p.b.type) return "A and B have different types";
  if (p.out.type != p.a.type && (is_fp64 || p.out.type != CUDA_R_32F)) return "the type of D";
  if (is_fp64 != (p.d.compute == CUBLAS_COMPUTE_64F)) return "the compute type";
  if (p.d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type != CUDA_R_32F) return "TF32 for other types than fp32";
  return nullptr;
}

const char* epilogue_refusal(const Problem& p) {
  if (p.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return nullptr;
  if (p.a.type != CUDA_R_16BF && p.a.type != CUDA_R_16F) return "an epilogue for this type";
  if (p.d.aux_leading_dimension % 8 != 0 || p.d.aux_leading_dimension < p.out.rows)
    return "the leading dimension of the auxiliary buffer";
  return nullptr;
}

/// Returns the reason why the library supports no algorithm for the problem, or null.
const char* refusal(const Problem& p) {
  if (p.m() != p.out.rows || p.n() != p.out.columns || p.k() != p.k_of_b() || p.c.rows != p.out.rows ||
      p.c.columns != p.out.columns)
    return "sizes do not fit";
  for (const Layout& l : {p.a, p.b, p.c, p.out})
    if (l.leading_dimension < l.rows || l.rows < 1 || l.columns < 1) return "a leading dimension or an empty matrix";
  if ((p.d.compute == CUBLAS_COMPUTE_64F) != (p.d.scale_type == CUDA_R_64F)) return "the scale type";
  if (const char* why = type_refusal(p)) return why;
  return epilogue_refusal(p);
}

Problem problem_of(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out) {
  return {read<Description>(description), read<Layout>(a), read<Layout>(b), read<Layout>(c), read<Layout>(out)};
}

double round_to_tf32(double x) {
  const auto narrow = static_cast<float>(x);
  if (!std::isfinite(narrow)) return narrow;
  std::uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

constexpr double kGeluLinear = 0.7978845608028654, kGeluCubic = 0.044715;
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kGeluLinear * (x + kGeluCubic * x * x * x)));
}
double gelu_slope(double x) {
  const double t = std::tanh(kGeluLinear * (x + kGeluCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kGeluLinear * (1 + 3 * kGeluCubic * x * x);
}

MatrixScales scales_of_a(const Problem& p) {
  return {p.d.a_scales, p.d.a_scale_mode, p.m(), p.k()};
}
MatrixScales scales_of_b(const Problem& p) {
  return {p.d.b_scales, p.d.b_scale_mode, p.n(), p.k()};
}

/// Operands of one GEMM. Factors are on the host, or on the GPU with CUBLASLT_POINTER_MODE_DEVICE.
struct Gemm {
  Problem p;
  double alpha, beta;
  const void *alpha_on_gpu, *beta_on_gpu;
  const void *a, *b, *c;
  void* out;
  i64 parts;
};

void record_matrix(const void* data, const Layout& l, bool is_write) {
  const Format format = format_of(l.type);
  for (i64 j = 0; j < l.columns; ++j)
    record_access(static_cast<const char*>(data) + bytes_of(j * l.leading_dimension, format), bytes_of(l.rows, format),
                  is_write);
}

/// Returns op(x) as columns of `rows` values each.
std::vector<double> load_matrix(const void* data, const Layout& l, bool is_transposed, bool tf32) {
  const i64 rows = is_transposed ? l.columns : l.rows, columns = is_transposed ? l.rows : l.columns;
  std::vector<double> values(static_cast<std::size_t>(rows * columns));
  for (i64 j = 0; j < columns; ++j) {
    for (i64 i = 0; i < rows; ++i) {
      const i64 at = is_transposed ? i * l.leading_dimension + j : j * l.leading_dimension + i;
      const double x = load_element(data, at, format_of(l.type));
      values[static_cast<std::size_t>(j * rows + i)] = tf32 ? round_to_tf32(x) : x;
    }
  }
  return values;
}

double apply_epilogue(const Description& d, Format format, i64 i, i64 j, double x) {
  const i64 at = j * d.aux_leading_dimension + i;
  if (d.epilogue == CUBLASLT_EPILOGUE_DGELU) return x * gelu_slope(load_element(d.aux, at, format));
  if (d.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) x += load_element(d.bias, i, format);
  if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return x;
  store_element(d.aux, at, format, x);
  return gelu(x);
}

void record_operands(const Gemm& x) {
  const Description& d = x.p.d;
  record_matrix(x.a, x.p.a, false);
  record_matrix(x.b, x.p.b, false);
  if (x.beta != 0) record_matrix(x.c, x.p.c, false);
  record_matrix(x.out, x.p.out, true);
  for (const void* factor : {x.alpha_on_gpu, x.beta_on_gpu})
    if (factor) record_access(factor, sizeof(float), false);
  scales_of_a(x.p).record();
  scales_of_b(x.p).record();
  if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  const Layout aux{x.p.out.type, x.p.out.rows, x.p.out.columns, d.aux_leading_dimension};
  record_matrix(d.aux, aux, d.epilogue != CUBLASLT_EPILOGUE_DGELU);
  if (d.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
    record_access(d.bias, static_cast<std::size_t>(x.p.out.rows) * size_of(format_of(x.p.out.type)), false);
}

/// Multiplies columns of `inner` values each by their scales.
void apply_scales(const MatrixScales& scales, i64 columns, i64 inner, bool is_by_inner, std::vector<double>& values) {
  for (i64 j = 0; j < columns; ++j)
    for (i64 i = 0; i < inner; ++i)
      values[static_cast<std::size_t>(j * inner + i)] *= is_by_inner ? scales.at(j, i) : scales.at(i, j);
}

/// Sums parts of the contraction separately, as split-K kernels do.
void multiply(Gemm x) {
  if (x.alpha_on_gpu) x.alpha = *static_cast<const float*>(x.alpha_on_gpu);
  if (x.beta_on_gpu) x.beta = *static_cast<const float*>(x.beta_on_gpu);
  record_operands(x);
  const Description& d = x.p.d;
  const i64 m = x.p.m(), n = x.p.n(), k = x.p.k();
  const bool tf32 = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32, is_fp64 = x.p.a.type == CUDA_R_64F;
  std::vector<double> left = load_matrix(x.a, x.p.a, d.transpose_a != CUBLAS_OP_N, tf32);
  std::vector<double> right = load_matrix(x.b, x.p.b, d.transpose_b != CUBLAS_OP_N, tf32);
  if (d.a_scales) apply_scales(scales_of_a(x.p), k, m, false, left);
  if (d.b_scales) apply_scales(scales_of_b(x.p), n, k, true, right);
  const Format format = format_of(x.p.out.type);
  std::vector<double> total(static_cast<std::size_t>(m)), part(static_cast<std::size_t>(m));
  for (i64 j = 0; j < n; ++j) {
    std::fill(total.begin(), total.end(), 0.0);
    for (i64 p = 0; p < x.parts; ++p) {
      std::fill(part.begin(), part.end(), 0.0);
      for (i64 l = k * p / x.parts; l < k * (p + 1) / x.parts; ++l) {
        const double factor = right[static_cast<std::size_t>(j * k + l)];
        const double* column = left.data() + l * m;
        for (i64 i = 0; i < m; ++i) part[static_cast<std::size_t>(i)] += column[i] * factor;
      }
      for (std::size_t i = 0; i < part.size(); ++i)
        total[i] += is_fp64 || x.parts == 1 ? part[i] : static_cast<double>(static_cast<float>(part[i]));
    }
    for (i64 i = 0; i < m; ++i) {
      double value = x.alpha * total[static_cast<std::size_t>(i)];
      if (x.beta != 0) value += x.beta * load_element(x.c, j * x.p.c.leading_dimension + i, format);
      store_element(x.out, j * x.p.out.leading_dimension + i, format, apply_epilogue(d, format, i, j, value));
    }
  }
}

const char* algorithm_refusal(const Problem& p, const Algorithm& algorithm) {
  if (const char* why = refusal(p)) return why;
  if (algorithm.mark != kAlgorithmMark) return "the algorithm was not returned by the heuristics";
  if (algorithm.problem_hash != p.hash()) return "the algorithm is for another kind of GEMM";
  return nullptr;
}

/// Returns the reason why the call is invalid, or null.
const char* call_refusal(const Problem& p, const Algorithm& algorithm, const void* const (&operands)[4],
                         const void* workspace, std::size_t workspace_bytes) {
  if (const char* why = algorithm_refusal(p, algorithm)) return why;
  for (int i = 0; i < 4; ++i)
    if (reinterpret_cast<std::uintptr_t>(operands[i]) % algorithm.alignments[i] != 0)
      return "an operand is less aligned than the preference promised";
  if (workspace_bytes < algorithm.workspace) return "the workspace is too small";
  if (workspace_bytes > 0 && reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    return "the workspace is not aligned to 256 bytes";
  if (p.d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && (!p.d.aux || reinterpret_cast<std::uintptr_t>(p.d.aux) % 16 != 0))
    return "the auxiliary buffer is missing or not aligned to 16 bytes";
  if (p.d.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS && !p.d.bias) return "the bias is missing";
  for (const auto& [scales, mode] : {std::pair{p.d.a_scales, p.d.a_scale_mode}, {p.d.b_scales, p.d.b_scale_mode}})
    if (mode != 0 && (!scales || reinterpret_cast<std::uintptr_t>(scales) % 16 != 0))
      return "scales of blocks are missing or not aligned to 16 bytes";
  return nullptr;
}

/// Copies an attribute; its size must be exact.
template <class T>
cublasStatus_t copy_attribute(T& to, const void* from, std::size_t size) {
  if (size != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_attribute(Description& d, cublasLtMatmulDescAttributes_t attribute, const void* from,
                             std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return copy_attribute(d.transpose_a, from, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return copy_attribute(d.transpose_b, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return copy_attribute(d.epilogue, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return copy_attribute(d.bias, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return copy_attribute(d.aux, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return copy_attribute(d.aux_leading_dimension, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return copy_attribute(d.a_scales, from, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return copy_attribute(d.b_scales, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return copy_attribute(d.a_scale_mode, from, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return copy_attribute(d.b_scale_mode, from, size);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return copy_attribute(d.pointer_mode, from, size);
    default:
      report("cublasLtMatmulDescSetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t set_attribute(Preference& p, cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                             std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return copy_attribute(p.max_workspace, from, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return copy_attribute(p.reductions, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return copy_attribute(p.alignments[0], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return copy_attribute(p.alignments[1], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return copy_attribute(p.alignments[2], from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return copy_attribute(p.alignments[3], from, size);
    default:
      report("cublasLtMatmulPreferenceSetAttribute: attribute %d is not simulated", static_cast<int>(attribute));
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

const char* preference_refusal(const Problem& p, const Preference& preference) {
  if (const char* why = refusal(p)) return why;
  const bool is_aligned = std::ranges::all_of(preference.alignments, [](std::uint32_t bytes) { return bytes >= 16; });
  if (is_low_precision(p.a.type) && !is_aligned) return "fp8 and fp4 need operands aligned to 16 bytes";
  if (p.d.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !is_aligned) return "an epilogue needs operands aligned to 16 bytes";
  return nullptr;
}

/// Returns the GEMM's work, row-major: the library computes its transpose.
GemmCost cost_of(const Gemm& gemm) {
  const Problem& p = gemm.p;
  const auto output = static_cast<double>(size_of(format_of(p.out.type)));
  return {p.n(), p.m(), p.k(), 1, size_of(format_of(p.a.type)), output * (gemm.beta != 0 ? 2 : 1)};
}

/// Returns the algorithms that the preference allows, in a seeded order: sums in one, two or four parts.
std::vector<Algorithm> candidates(const Problem& p, const Preference& preference) {
  std::vector<Algorithm> found;
  for (const std::uint64_t parts : {1, 2, 4}) {
    if (parts > 1 && !(preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) continue;
    Algorithm algorithm{kAlgorithmMark, parts, p.hash(), parts == 1 ? 0 : parts << 14, {}};
    std::ranges::copy(preference.alignments, algorithm.alignments);
    if (algorithm.workspace <= preference.max_workspace) found.push_back(algorithm);
  }
  if (!found.empty())
    std::ranges::rotate(found, found.begin() + static_cast<std::ptrdiff_t>(settings().seed % found.size()));
  return found;
}

}  // namespace
}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion(void) {
  return CUBLAS_VERSION;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "not supported by the simulated library";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "invalid value";
    default:
      return "an error of the simulated library";
  }
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t, cudaDataType type,
                                                 uint64_t rows, uint64_t columns, int64_t leading_dimension) {
  write(layout, Layout{type, static_cast<i64>(rows), static_cast<i64>(columns), leading_dimension});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, std::size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  write(description, Description{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr,
                                 0, nullptr, nullptr, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                 CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_POINTER_MODE_HOST});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* from,
                                              std::size_t size) {
  Description d = read<Description>(description);
  const cublasStatus_t status = set_attribute(d, attribute, from, size);
  write(description, d);
  return status;
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, std::size_t) {
  write(preference, Preference{0, ~0u, {256, 256, 256, 256}});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                                                    std::size_t size) {
  Preference p = read<Preference>(preference);
  const cublasStatus_t status = set_attribute(p, attribute, from, size);
  write(preference, p);
  return status;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int limit,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
  const Problem p = problem_of(description, a, b, c, out);
  const Preference wanted = read<Preference>(preference);
  *count = 0;
  if (const char* why = preference_refusal(p, wanted)) {
    report("cublasLtMatmulAlgoGetHeuristic: %s", why);
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const Algorithm& algorithm : candidates(p, wanted)) {
    if (*count == limit) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    write(&result.algo, algorithm);
    result.workspaceSize = algorithm.workspace;
    result.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const auto algorithm = read<Algorithm>(algo);
  if (algorithm_refusal(problem_of(description, a, b, c, out), algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* out,
                              cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (should_fail("cublasLtMatmul")) return CUBLAS_STATUS_EXECUTION_FAILED;
  const Problem p = problem_of(description, a_layout, b_layout, c_layout, out_layout);
  const auto algorithm = read<Algorithm>(algo);
  if (const char* why = call_refusal(p, algorithm, {a, b, c, out}, workspace, workspace_bytes)) {
    report("cublasLtMatmul of %ld x %ld x %ld: %s", p.m(), p.n(), p.k(), why);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto scalar = [&](const void* x) {
    return p.d.scale_type == CUDA_R_64F ? *static_cast<const double*>(x) : *static_cast<const float*>(x);
  };
  const bool is_on_gpu = p.d.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE;
  const Gemm gemm{p,
                  is_on_gpu ? 0 : scalar(alpha),
                  is_on_gpu ? 0 : scalar(beta),
                  is_on_gpu ? alpha : nullptr,
                  is_on_gpu ? beta : nullptr,
                  a,
                  b,
                  c,
                  out,
                  static_cast<i64>(algorithm.parts)};
  const std::string name =
      "cublasLtMatmul " + std::to_string(p.m()) + " x " + std::to_string(p.n()) + " x " + std::to_string(p.k());
  enqueue(stream, {.name = name, .run = [=] {
                     if (workspace_bytes > 0) {
                       record_access(workspace, workspace_bytes, true);
                       std::memset(workspace, 0xA5, workspace_bytes);
                     }
                     if (cost_model()) spend(cost_model()->gemm(cost_of(gemm)));
                     if (settings().computes) multiply(gemm);
                   }});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
