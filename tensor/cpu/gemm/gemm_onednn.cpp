// bf16 GEMMs with oneDNN's matmul primitive, for CPUs with AVX512_BF16 but without AMX. As for fp32, one
// call per block of C of fixed size, each on one thread.
//
// The library fixes how a primitive splits its work when it is created, from the number of OpenMP threads allowed at
// that time. Primitives are therefore created and run where only one is allowed; otherwise results would depend on the
// number of threads.
#include <omp.h>

#include <dnnl.hpp>
#include <map>
#include <tuple>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/gemm/gemm_blocks.h"

namespace mcpp::kernel {
namespace {

using dnnl::memory;

memory::desc strided(i64 rows, i64 columns, memory::data_type type, i64 ld, bool transposed) {
  return {{rows, columns}, type, transposed ? memory::dims{1, ld} : memory::dims{ld, 1}};
}

}  // namespace

// Kernels of one thread, by block size and operand layout.
struct OneDnnKernels {
  struct Kernel {
    dnnl::matmul primitive;
    memory a, b, c, scratch;
  };
  using Key = std::tuple<i64, i64, i64, i64, bool, i64, bool, i64, bool, bool>;

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Key, Kernel> by_key;

  Kernel create(GemmSize s, i64 lda, bool ta, i64 ldb, bool tb, i64 ldc, bool to_f32, bool accumulate) const;
};

OneDnnKernels::Kernel OneDnnKernels::create(GemmSize s, i64 lda, bool ta, i64 ldb, bool tb, i64 ldc, bool to_f32,
                                            bool accumulate) const {
  const auto bf16 = memory::data_type::bf16;
  const auto a = strided(s.m, s.k, bf16, lda, ta), b = strided(s.k, s.n, bf16, ldb, tb);
  const auto c = strided(s.m, s.n, to_f32 ? memory::data_type::f32 : bf16, ldc, false);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops post;
    post.append_sum(1.0f);
    attributes.set_post_ops(post);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine);
  const auto empty = [&](const memory::desc& d) { return memory(d, engine, nullptr); };
  return {dnnl::matmul(description), empty(a), empty(b), empty(c), memory(description.scratchpad_desc(), engine)};
}

OneDnnCache::OneDnnCache() = default;
OneDnnCache::~OneDnnCache() = default;

OneDnnKernels& OneDnnCache::of_thread(int thread) {
  auto& kernels = threads_[static_cast<std::size_t>(thread)];
  if (!kernels) kernels = std::make_unique<OneDnnKernels>();
  return *kernels;
}

void OneDnnCache::reserve(int threads) {
  if (threads_.size() < static_cast<std::size_t>(threads)) threads_.resize(static_cast<std::size_t>(threads));
}

template <class C>
void gemm_onednn(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c) {
  OneDnnCache& cache = device.gemm_cache().onednn;
  cache.reserve(device.threads());
  for_each_block(device, size, block_of(size, a.transposed), [&](Block at) {
    const SingleThreadScope single_thread;
    OneDnnKernels& kernels = cache.of_thread(omp_get_thread_num());
    const GemmSize s{at.rows, at.columns, size.k};
    const bool to_f32 = std::is_same_v<C, float>, accumulate = beta != 0;
    const OneDnnKernels::Key key{s.m, s.n, s.k, a.ld, a.transposed, b.ld, b.transposed, size.n, to_f32, accumulate};
    auto it = kernels.by_key.find(key);
    if (it == kernels.by_key.end()) {
      it = kernels.by_key
               .emplace(key, kernels.create(s, a.ld, a.transposed, b.ld, b.transposed, size.n, to_f32, accumulate))
               .first;
    }
    auto& kernel = it->second;
    kernel.a.set_data_handle(const_cast<BFloat16*>(a.at(at.row, 0)));
    kernel.b.set_data_handle(const_cast<BFloat16*>(b.at(0, at.column)));
    kernel.c.set_data_handle(c + at.row * size.n + at.column);
    kernel.primitive.execute(kernels.stream, {{DNNL_ARG_SRC, kernel.a},
                                              {DNNL_ARG_WEIGHTS, kernel.b},
                                              {DNNL_ARG_DST, kernel.c},
                                              {DNNL_ARG_SCRATCHPAD, kernel.scratch}});
    kernels.stream.wait();
  });
}

template void gemm_onednn(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, float*);
template void gemm_onednn(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, BFloat16*);

}  // namespace mcpp::kernel
