// Stubs that fuzzers link instead of kernels and their libraries, because reading files needs no computation.
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "tensor/cpu/shared_arena.h"
#include "tensor/ops/low_precision/param_remainders.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/ops/ops.h"
#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {

CpuDevice::CpuDevice(CpuOptions options)
    : Device(DeviceType::Cpu), options_(options), gemm_cache_(nullptr, [](GemmCache*) {}) {}

CpuDevice::~CpuDevice() {
  free_pool();
}

void* CpuDevice::system_allocate(i64 bytes) {
  return std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64));
}

void CpuDevice::system_free(void* data) noexcept {
  std::free(data);
}

SystemMemory system_memory(const Device&) {
  return {};
}

void ops::fill_zero(Tensor&) {
  fail(ExitCode::Internal, "a fuzzer has no kernels");
}

void ops::quantize(const Tensor&, Quantized&) {
  fail(ExitCode::Internal, "a fuzzer has no kernels");
}

void ops::dequantize(const Quantized&, Tensor&) {
  fail(ExitCode::Internal, "a fuzzer has no kernels");
}

void ops::param_remainders(const Tensor&, ParamRemainders&) {
  fail(ExitCode::Internal, "a fuzzer has no kernels");
}

void ops::join_param_remainders(const Tensor&, const ParamRemainders&, Tensor&) {
  fail(ExitCode::Internal, "a fuzzer has no kernels");
}

/// Copies between tensors of one type, as a group of one rank does.
void ops::copy(const Tensor& src, Tensor& dst) {
  std::memcpy(dst.raw(), src.raw(), static_cast<std::size_t>(src.bytes()));
}

void read_bytes(const Tensor&, void*) {
  fail(ExitCode::Internal, "a fuzzer has no other device");
}

void write_bytes(const void*, Tensor&) {
  fail(ExitCode::Internal, "a fuzzer has no other device");
}

}  // namespace mcpp
