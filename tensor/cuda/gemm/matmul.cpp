#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "tensor/cuda/event.h"
#include "tensor/cuda/gemm/cublas.h"
#include "tensor/ops/kernels.h"

namespace mcpp {

CublasLt* make_cublas(const CudaDevice& device) {
  auto state = std::make_unique<CublasLt>();
  check_cublas(cublasLtCreate(&state->handle), "cublasLtCreate");
  state->timed = device.options().time_gemms;
  state->allow_tf32 = device.options().allow_tf32;
  state->platform = str("cuBLASLt ", cublasLtGetVersion(), ", ", device.properties().name);
  return state.release();
}

void destroy_cublas(CublasLt* state) {
  cublasLtDestroy(state->handle);
  delete state;
}

std::string gemm_choices_text(Device& device) {
  const CublasLt& state = static_cast<CudaDevice&>(device).cublas();
  return to_text(state.choices, state.platform);
}

void use_gemm_choices(Device& device, std::span<const std::string> texts, std::string_view name) {
  CublasLt& state = static_cast<CudaDevice&>(device).cublas();
  GemmAlgoCache choices = merged_gemm_choices(texts, state.platform, name);
  if (choices == state.choices) return;
  state.choices = std::move(choices);
  state.plans.clear();
}

namespace {

/// Workspace required by Hopper's kernels.
constexpr u64 kMaxWorkspace = u64{32} << 20;
constexpr int kCandidates = 8;
constexpr int kTimings = 5;
/// Replaces the heuristics' first candidate only by one that takes less than this fraction of its time, so that timer
/// noise does not decide.
constexpr float kClearlyFaster = 0.98f;
/// Allowed reductions of split sums: in fp32 by a separate kernel, in a fixed order. Adding them in the output type
/// would round them.
constexpr u32 kReductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::BF16:
      return CUDA_R_16BF;
    case DType::F16:
      return CUDA_R_16F;
    case DType::F64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

/// Returns the type of a factor in memory.
cudaDataType_t factor_type(const GemmKey& key, bool is_a) {
  if (key.blocks == GemmBlocks::Nvfp4) return CUDA_R_4F_E2M1;
  if (key.fp8 == GemmFp8::None) return cuda_type(key.in);
  return is_a && key.fp8 == GemmFp8::E5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

/// Returns the layout of the scales of a factor.
cublasLtMatmulMatrixScale_t scale_mode(const GemmKey& key, bool is_a) {
  switch (key.blocks) {
    case GemmBlocks::None:
      break;
    case GemmBlocks::Blockwise:
      return is_a ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case GemmBlocks::BlockwiseVectors:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case GemmBlocks::Mxfp8:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case GemmBlocks::Nvfp4:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

cublasLtEpilogue_t epilogue_of(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::None:
      break;
    case GemmEpilogue::Gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::BiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::GeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& operation, cublasLtMatmulDescAttributes_t attribute, T value) {
  check_cublas(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute");
}
template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check_cublas(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
               "cublasLtMatmulPreferenceSetAttribute");
}

/// Returns true if the GEMM is for groups with any number of rows.
bool is_grouped(const GemmKey& key) {
  return key.m == 0 || key.k == 0;
}
GemmKey with_rows(GemmKey key, i64 rows) {
  (key.m == 0 ? key.m : key.k) = rows;
  return key;
}
/// Rows of the group for which the common choice is made.
constexpr i64 kTypicalRows = 512;

/// Returns the layout of a row-major matrix, viewed as its column-major transpose.
cublasLtMatrixLayoutOpaque_t layout(cudaDataType_t type, i64 rows, i64 columns) {
  cublasLtMatrixLayoutOpaque_t result{};
  check_cublas(cublasLtMatrixLayoutInit(&result, type, static_cast<u64>(columns), static_cast<u64>(rows),
                                        std::max<i64>(1, columns)),
               "cublasLtMatrixLayoutInit");
  return result;
}

GemmPlan describe(const GemmKey& key) {
  GemmPlan plan;
  const bool fp64 = key.in == DType::F64;
  const cublasComputeType_t fp32 = key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check_cublas(
      cublasLtMatmulDescInit(&plan.operation, fp64 ? CUBLAS_COMPUTE_64F : fp32, fp64 ? CUDA_R_64F : CUDA_R_32F),
      "cublasLtMatmulDescInit");
  const auto form = [](bool transpose) { return i32{transpose ? CUBLAS_OP_T : CUBLAS_OP_N}; };
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, form(key.transpose_b));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, form(key.transpose_a));
  const cudaDataType_t a = factor_type(key, true), b = factor_type(key, false);
  plan.a = key.transpose_a ? layout(a, key.k, key.m) : layout(a, key.m, key.k);
  plan.b = key.transpose_b ? layout(b, key.n, key.k) : layout(b, key.k, key.n);
  plan.c = layout(cuda_type(key.out), key.m, key.n);
  if (key.epilogue != GemmEpilogue::None) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);  // same layout and type as c
  }
  if (key.blocks != GemmBlocks::None) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, i32{scale_mode(key, false)});
    set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, i32{scale_mode(key, true)});
  }
  if (key.blocks == GemmBlocks::Nvfp4)
    set(plan.operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, i32{CUBLASLT_POINTER_MODE_DEVICE});
  return plan;
}

/// Sets the addresses of scales and epilogue operands, for each GEMM. The library's first factor is b.
void set_pointers(const GemmPlan& plan, const GemmKey& key, const Operands& x) {
  if (key.epilogue == GemmEpilogue::BiasGelu) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
  if (key.epilogue != GemmEpilogue::None) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux);
  if (key.fp8 == GemmFp8::None && key.blocks == GemmBlocks::None) return;
  set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, x.b_scales);
  set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.a_scales);
}

/// Computes c = op(a) op(b), or adds it to c.
cublasStatus_t try_run(const CublasLt& state, const GemmKey& key, const GemmPlan& plan, const Operands& x,
                       CudaDevice& device) {
  const Buffer workspace(plan.workspace, device, MemoryClass::Workspace);
  set_pointers(plan, key, x);
  const bool fp64 = key.in == DType::F64;
  const double one = 1, beta = key.accumulate ? 1 : 0;
  const float one_f = 1, beta_f = key.accumulate ? 1 : 0;
  const void* alpha_at = x.factors ? x.factors : fp64 ? static_cast<const void*>(&one) : &one_f;
  const void* beta_at = x.factors ? x.factors + 1 : fp64 ? static_cast<const void*>(&beta) : &beta_f;
  return cublasLtMatmul(state.handle, &plan.operation, alpha_at, x.b, &plan.b, x.a, &plan.a, beta_at, x.c, &plan.c, x.c,
                        &plan.c, &plan.algorithm, workspace.data(), static_cast<std::size_t>(plan.workspace),
                        device.stream());
}

void check_gemm(cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status != CUBLAS_STATUS_SUCCESS) check_cublas(status, str(call, " for ", to_text(key)).c_str());
}

/// Returns the heuristics' candidates, most promising first.
std::vector<GemmAlgo> candidates(const CublasLt& state, const GemmKey& key, const GemmPlan& plan) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check_cublas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
  // A split of sums would be tuned for one number of rows.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      is_grouped(key) ? u32{CUBLASLT_REDUCTION_SCHEME_NONE} : kReductions);
  // The key has the minimum alignment of all three operands; each is aligned at least to its own elements.
  const auto alignment = [&](DType type) { return static_cast<u32>(std::max(key.alignment, size_of(type))); };
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES})
    set(preference, attribute, alignment(key.in));
  for (auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(preference, attribute, alignment(key.out));
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(state.handle, &plan.operation, &plan.b, &plan.a, &plan.c, &plan.c, &preference,
                                     kCandidates, results.data(), &count);
  check_gemm(status, "cublasLtMatmulAlgoGetHeuristic", key);
  std::vector<GemmAlgo> choices;
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    choices.push_back({std::to_array(result.algo.data), static_cast<i64>(result.workspaceSize)});
  }
  MCPP_CHECK(!choices.empty(), "cuBLASLt has no algorithm for ", to_text(key));
  return choices;
}

void choose(GemmPlan& plan, const GemmAlgo& choice) {
  std::ranges::copy(choice.algorithm, plan.algorithm.data);
  plan.workspace = choice.workspace;
}

/// Returns the shortest of several runs, in ms, after a warm-up; infinite for an algorithm that the library refuses to
/// run.
float time_of(const CublasLt& state, const GemmKey& key, const GemmPlan& plan, const Operands& x, CudaDevice& device) {
  const CudaEvent start, stop;
  float best = std::numeric_limits<float>::infinity();
  if (try_run(state, key, plan, x, device) != CUBLAS_STATUS_SUCCESS) return best;
  for (int i = 0; i < kTimings; ++i) {
    start.record(device.stream());
    check_gemm(try_run(state, key, plan, x, device), "cublasLtMatmul", key);
    stop.record(device.stream());
    best = std::min(best, stop.milliseconds_since(start));
  }
  return best;
}

GemmAlgo fastest(const CublasLt& state, const GemmKey& key, GemmPlan plan, const Operands& x, CudaDevice& device) {
  const std::vector<GemmAlgo> all = candidates(state, key, plan);
  if (!state.timed || all.size() == 1 || is_grouped(key)) return all.front();  // the current group may be small
  GemmAlgo best = all.front();
  float limit = std::numeric_limits<float>::infinity();
  for (const GemmAlgo& choice : all) {
    choose(plan, choice);
    const float time = time_of(state, key, plan, x, device);
    if (time >= limit) continue;
    best = choice;
    limit = &choice == &all.front() ? time * kClearlyFaster : time;
  }
  return best;
}

/// Calls fastest() while preserving the contents of c if the GEMM is added to it. (Otherwise the GEMM overwrites
/// c anyway.)
GemmAlgo find_choice(const CublasLt& state, const GemmKey& key, const GemmPlan& plan, Operands x, CudaDevice& device) {
  if (!key.accumulate) return fastest(state, key, plan, x, device);
  const auto bytes = static_cast<std::size_t>(key.m * key.n * size_of(key.out));
  const Buffer scratch(key.m * key.n * size_of(key.out), device, MemoryClass::Workspace);
  check_cuda(cudaMemcpyAsync(scratch.data(), x.c, bytes, cudaMemcpyDeviceToDevice, device.stream()), "cudaMemcpyAsync");
  x.c = scratch.data();
  return fastest(state, key, plan, x, device);
}

/// Returns true if the library accepts an algorithm that was read from a file.
bool is_valid(const CublasLt& state, const GemmPlan& plan) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(state.handle, &plan.operation, &plan.b, &plan.a, &plan.c, &plan.c, &plan.algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         static_cast<i64>(result.workspaceSize) <= plan.workspace;
}

const GemmPlan& plan_for(CublasLt& state, const GemmKey& key, const Operands& x, CudaDevice& device) {
  if (const auto it = state.plans.find(key); it != state.plans.end()) return it->second;
  GemmPlan plan = describe(is_grouped(key) ? with_rows(key, kTypicalRows) : key);
  set_pointers(plan, key, x);  // read by the heuristics
  const auto known = state.choices.find(key);
  if (known != state.choices.end()) choose(plan, known->second);
  if (known == state.choices.end() || !is_valid(state, plan)) {
    const GemmAlgo choice = find_choice(state, key, plan, x, device);
    choose(plan, choice);
    state.choices[key] = choice;
  }
  return state.plans.emplace(key, plan).first->second;
}

}  // namespace

void multiply(const GemmKey& key, const Operands& x, CudaDevice& device) {
  CublasLt& state = device.cublas();
  check_gemm(try_run(state, key, plan_for(state, key, x, device), x, device), "cublasLtMatmul", key);
}

void multiply_group(const GemmKey& key, i64 rows, const Operands& x, CudaDevice& device) {
  CublasLt& state = device.cublas();
  const GemmKey sized = with_rows(key, rows);
  GemmPlan plan = plan_for(state, key, x, device);
  const GemmPlan layouts = describe(sized);
  plan.a = layouts.a, plan.b = layouts.b, plan.c = layouts.c;
  check_gemm(try_run(state, sized, plan, x, device), "cublasLtMatmul", sized);
}

template <>
void Kernels<DeviceType::Cuda>::matmul(const Tensor& a, const Tensor& b, Tensor& c, const ops::MatmulOptions& options) {
  if (c.numel() == 0) return;
  CudaDevice& device = cuda(c);
  const Operands x{a.raw(), b.raw(), c.raw()};
  const GemmKey key{.in = a.dtype(),
                    .out = c.dtype(),
                    .tf32 = device.cublas().allow_tf32 && a.dtype() == DType::F32,
                    .transpose_a = options.transpose_a,
                    .transpose_b = options.transpose_b,
                    .accumulate = options.beta != 0,
                    .m = c.dim(0),
                    .n = c.dim(1),
                    .k = a.dim(options.transpose_a ? 0 : 1),
                    .alignment = gemm_alignment(x.a, x.b, x.c)};
  if (key.k == 0) {
    if (!key.accumulate) Kernels<DeviceType::Cuda>::fill_zero(c);
    return;
  }
  multiply(key, x, device);
}

}  // namespace mcpp
