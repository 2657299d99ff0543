// Stable counting sort of choices by expert: each warp processes a chunk of the choices, 32 at a time. Also drops
// choices beyond a capacity: one block per expert searches for the last accepted choice, eight bits of the sort key at
// a time.
#include "tensor/cuda/launch.cuh"
#include "tensor/ops/routing_tables.h"

namespace mcpp {
namespace {

constexpr i64 kChunk = 1024;  // choices

/// Returns the expert's index in the range, or -1.
__device__ __forceinline__ int index_in_range(const ExpertRange& range, i32 expert) {
  const i64 number = expert - range.first;
  return expert >= 0 && number >= 0 && number < range.count ? static_cast<int>(number) : -1;
}

/// Calls f(i, number, before, total) for the choices of the calling warp's chunk, 32 at a time: `number` is the
/// expert's index or -1, `before` how many of the 32 with the same expert come earlier, `total` how many have it in
/// total.
template <class F>
__device__ void each_choice(const i32* experts, const ExpertRange& range, i64 choices, F&& f) {
  const int lane = threadIdx.x % kWarp;
  const i64 begin = blockIdx.x * kChunk, end = min(choices, begin + kChunk);
  for (i64 first = begin; first < end; first += kWarp) {
    const i64 i = first + lane;
    const int number = i < end ? index_in_range(range, experts[i]) : -1;
    const unsigned same = __match_any_sync(~0u, number);
    f(i, number, __popc(same & ((1u << lane) - 1)), __popc(same));
  }
}

/// Counts the choices of each chunk by expert into counts[chunk]. Shared memory: one count per expert.
__global__ void __launch_bounds__(kWarp)
    count_chunks(const i32* experts, const ExpertRange range, i64 choices, i32* counts) {
  i32* sums = dynamic_shared<i32>();
  for (i64 e = threadIdx.x; e < range.count; e += kWarp) sums[e] = 0;
  __syncwarp();
  each_choice(experts, range, choices, [&](i64, int number, int before, int total) {
    if (number >= 0 && before == 0) sums[number] += total;
    __syncwarp();
  });
  for (i64 e = threadIdx.x; e < range.count; e += kWarp) counts[blockIdx.x * range.count + e] = sums[e];
}

/// Replaces counts [chunks, n] by their exclusive prefix sums over the chunks; totals [n] are the sums.
__global__ void sum_chunks(i32* counts, i64 chunks, i64 n, i32* totals) {
  const i64 e = blockIdx.x * i64{blockDim.x} + threadIdx.x;
  if (e >= n) return;
  i32 sum = 0;
  for (i64 p = 0; p < chunks; ++p) {
    const i32 own = counts[p * n + e];
    counts[p * n + e] = sum;
    sum += own;
  }
  totals[e] = sum;
}

/// Replaces the count of each expert by the start of its choices. One thread: there are few experts.
__global__ void find_begins(i32* totals, i64 n) {
  i32 sum = 0;
  for (i64 e = 0; e < n; ++e) {
    const i32 own = totals[e];
    totals[e] = sum;
    sum += own;
  }
}

/// Rows of a table of choices. Without `begins`, each expert has `rows` rows; otherwise there are `rows` in total.
struct ChoiceRows {
  const i32* begins;
  i64 rows;

  __device__ i32 begin(i64 expert) const { return begins ? begins[expert] : static_cast<i32>(expert * rows); }
  /// Returns the row, or -1 beyond the rows of the table.
  __device__ i32 limited(i64 expert, i32 row) const { return row < (begins ? rows : (expert + 1) * rows) ? row : -1; }
};

/// Writes the sorted choices. Shared memory: for each expert the index of its next choice.
__global__ void __launch_bounds__(kWarp)
    place_sorted(const i32* experts, const ExpertRange range, i64 choices, i64 topk, const i32* counts,
                 const ChoiceRows table, i32* tokens, i32* slots) {
  i32* next = dynamic_shared<i32>();
  for (i64 e = threadIdx.x; e < range.count; e += kWarp)
    next[e] = table.begin(e) + counts[blockIdx.x * range.count + e];
  __syncwarp();
  each_choice(experts, range, choices, [&](i64 i, int number, int before, int total) {
    const i32 row = number < 0 ? -1 : table.limited(number, next[number] + before);
    __syncwarp();
    if (number >= 0 && before == 0) next[number] += total;
    __syncwarp();
    if (i < choices) slots[i] = row;
    if (row >= 0) tokens[row] = static_cast<i32>(i / topk);
  });
}

/// Places the rows of all ranks for expert blockIdx.x of the range. Each thread has a row of a rank.
__global__ void place_padded(const i32* counts, i64 ranks, i64 num_experts, const ExpertRange range,
                             const ops::PaddedRows rows, i32* order, i32* inverse) {
  const i64 e = blockIdx.x;
  i64 begin = 0;
  for (i64 rank = 0; rank < ranks; ++rank) {
    const i64 first = (rank * range.count + e) * rows.per_rank;
    const i64 count = min(i64{counts[rank * num_experts + range.first + e]}, rows.per_rank);
    for (i64 i = threadIdx.x; i < rows.per_rank; i += blockDim.x) {
      const bool is_used = i < count && begin + i < rows.per_expert;
      const i64 row = e * rows.per_expert + begin + i;
      inverse[first + i] = is_used ? static_cast<i32>(row) : -1;
      if (is_used) order[row] = static_cast<i32>(first + i);
    }
    begin += count;
  }
  for (i64 i = begin + threadIdx.x; i < rows.per_expert; i += blockDim.x) order[e * rows.per_expert + i] = -1;
}

constexpr int kTallyThreads = 256;
constexpr i64 kTallyChoices = 16 * kTallyThreads;  ///< choices of a block

/// Counts a part of the choices of sample blockIdx.x. Sums of counts are exact in fp64, so their order does not matter.
/// Shared memory: a count per expert, and that of dropped choices.
__global__ void __launch_bounds__(kTallyThreads)
    tally(const i32* experts, i64 tokens, i64 topk, i64 num_experts, double* counts, double* dropped) {
  i32* found = dynamic_shared<i32>();
  for (i64 e = threadIdx.x; e <= num_experts; e += kTallyThreads) found[e] = 0;
  __syncthreads();
  const i64 batch = gridDim.x, sample = blockIdx.x;
  const i64 first = blockIdx.y * kTallyChoices,
            end = min((tokens - sample + batch - 1) / batch * topk, first + kTallyChoices);
#pragma unroll 4
  for (i64 i = first + threadIdx.x; i < end; i += kTallyThreads) {
    const i32 expert = experts[batch == 1 ? i : (i / topk * batch + sample) * topk + i % topk];
    if (expert < num_experts) atomicAdd(&found[expert < 0 ? num_experts : expert], 1);
  }
  __syncthreads();
  for (i64 e = threadIdx.x; e < num_experts; e += kTallyThreads)
    if (found[e] > 0) atomicAdd(&counts[sample * num_experts + e], static_cast<double>(found[e]));
  if (threadIdx.x == 0 && dropped && found[num_experts] > 0)
    atomicAdd(dropped, static_cast<double>(found[num_experts]));
}

constexpr int kSumThreads = 256;

__global__ void __launch_bounds__(kSumThreads) divide_by_mean_of(double* counts, i64 n) {
  double sum = 0;
  for (i64 i = threadIdx.x; i < n; i += kSumThreads) sum += counts[i];
  sum = block_sum(sum);
  const double factor = sum > 0 ? static_cast<double>(n) / sum : 0;
  for (i64 i = threadIdx.x; i < n; i += kSumThreads) counts[i] *= factor;
}

__global__ void __launch_bounds__(kSumThreads) add_products(const double* x, const double* y, i64 n, double* to) {
  double sum = 0;
  for (i64 i = threadIdx.x; i < n; i += kSumThreads) sum += x[i] * y[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *to += sum;
}

__global__ void fill_table(i32* table, i64 elements, i64 columns, const ops::Progression values) {
  const i64 i = blockIdx.x * i64{blockDim.x} + threadIdx.x;
  if (i >= elements) return;
  table[i] = static_cast<i32>(values.first + i / columns * values.row_step + i % columns * values.column_step);
}

/// Finds the distinct groups of each token; one thread per token.
__global__ void find_distinct_groups(const i32* experts, i64 tokens, i64 topk, const i32* groups, i64 num_experts,
                                     i64 width, const i32* offsets, i64 block, i64 slots, i32* distinct) {
  const i64 t = blockIdx.x * i64{blockDim.x} + threadIdx.x;
  if (t >= tokens) return;
  const i32 offset = offsets[t / block];
  i32* own = distinct + t * slots;
  i64 found = 0;
  for (i64 j = 0; offset >= 0 && j < topk; ++j) {
    const i64 expert = experts[t * topk + j];
    if (expert < 0 || expert >= num_experts) continue;
    for (i64 i = 0; i < width && found < slots; ++i) {
      const i32 group = groups[expert * width + i];
      i64 at = 0;
      while (at < found && own[at] != group + offset) ++at;
      if (group >= 0 && at == found) own[found++] = group + offset;
    }
  }
  for (; found < slots; ++found) own[found] = -1;
}

/// Choices of tokens with the keys that order the choices of an expert.
struct WeightedChoices {
  const i32* experts;
  const float* weights;
  const i32* order;
  i64 choices, topk;

  /// Returns the sort key, smaller first: larger weights, with NaN as the largest; then `order`.
  __device__ u64 key(i64 i) const {
    const float weight = isnan(weights[i]) ? INFINITY : weights[i];
    const u32 bits = weight == 0 ? 0 : __float_as_uint(weight);
    const u32 descending = bits >> 31 ? bits : ~(bits | 1u << 31);
    return u64{descending} << 32 | static_cast<u32>(order[i / topk] * topk + i % topk);
  }
};

constexpr int kDigit = 8, kDigits = 1 << kDigit;

/// Drops choices beyond the capacity: block e sets to -1 the choices of expert e in kept[first, first + count) after
/// its first `max_choices` ones.
__global__ void __launch_bounds__(1024)
    drop_beyond_capacity(const WeightedChoices x, i64 max_choices, i64 first, i64 count, i32* kept) {
  MCPP_SHARED(unsigned[kDigits], counts);
  MCPP_SHARED(u64, last);       // key of the last accepted choice, as far as its bits are known
  MCPP_SHARED(unsigned, left);  // its rank, from 1, among the keys with these bits
  MCPP_SHARED(bool, is_full);
  const i32 expert = static_cast<i32>(blockIdx.x);
  if (threadIdx.x == 0) last = 0, left = static_cast<unsigned>(max_choices), is_full = true;
  for (int shift = 64 - kDigit; shift >= 0; shift -= kDigit) {
    for (int digit = threadIdx.x; digit < kDigits; digit += blockDim.x) counts[digit] = 0;
    __syncthreads();
    const u64 known_bits = shift + kDigit < 64 ? ~u64{0} << (shift + kDigit) : 0;
    for (i64 i = threadIdx.x; i < x.choices; i += blockDim.x) {
      if (x.experts[i] != expert) continue;
      const u64 key = x.key(i);
      if ((key & known_bits) == last) atomicAdd(&counts[key >> shift & (kDigits - 1)], 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 0;
      while (digit < kDigits && left > counts[digit]) left -= counts[digit++];
      if (digit == kDigits)
        is_full = false;
      else
        last |= static_cast<u64>(digit) << shift;
    }
    __syncthreads();
    if (!is_full) return;
  }
  for (i64 i = first + threadIdx.x; i < first + count; i += blockDim.x)
    if (x.experts[i] == expert && x.key(i) > last) kept[i - first] = -1;
}

/// One block per run.
__global__ void place_runs(const i32* runs, i32* order, i32* inverse) {
  const i32 *run = runs + 3 * blockIdx.x, from = run[0], to = run[1], count = run[2];
  for (i32 i = threadIdx.x; i < count; i += blockDim.x) {
    order[to + i] = from + i;
    inverse[from + i] = to + i;
  }
}

/// Number of occurrences of each expert: per chunk as a prefix sum, and in total.
struct Counts {
  i64 chunks;
  Tensor before, totals;

  Counts(const Tensor& experts, const ExpertRange& range) : chunks((experts.numel() + kChunk - 1) / kChunk) {
    constexpr i64 kMaxSharedBytes = 48 << 10, kThreads = 128;
    MCPP_CHECK(bytes(range) <= kMaxSharedBytes, "sort_choices: ", range.count, " experts are too many for this GPU");
    CudaDevice& device = cuda(experts);
    before = Tensor::empty({std::max<i64>(chunks, 1), range.count}, DType::I32, device, MemoryClass::Workspace);
    totals = Tensor::empty({range.count}, DType::I32, device, MemoryClass::Workspace);
    if (chunks > 0) {
      launch(count_chunks, static_cast<unsigned>(chunks), kWarp, shared(range), device.stream(), experts.data<i32>(),
             range, experts.numel(), before.data<i32>());
    }
    launch(sum_chunks, static_cast<unsigned>((range.count + kThreads - 1) / kThreads), kThreads, 0, device.stream(),
           before.data<i32>(), chunks, range.count, totals.data<i32>());
  }
  static i64 bytes(const ExpertRange& range) { return range.count * static_cast<i64>(sizeof(i32)); }
  static std::size_t shared(const ExpertRange& range) { return static_cast<std::size_t>(bytes(range)); }
};

}  // namespace

template <>
void ChoiceKernels<DeviceType::Cuda>::count_choices(const Tensor& experts, const ExpertRange& range, Tensor& counts) {
  const Counts counted(experts, range);
  check_cuda(cudaMemcpyAsync(counts.raw(), counted.totals.raw(), static_cast<std::size_t>(counts.bytes()),
                             cudaMemcpyDeviceToDevice, cuda(experts).stream()),
             "cudaMemcpyAsync");
}

template <>
void ChoiceKernels<DeviceType::Cuda>::sort_choices(const Tensor& experts, const ExpertRange& range, Tensor& tokens,
                                                   Tensor& slots) {
  const Counts found(experts, range);
  const cudaStream_t stream = cuda(experts).stream();
  launch(find_begins, 1, 1, 0, stream, found.totals.data<i32>(), range.count);
  launch(place_sorted, static_cast<unsigned>(found.chunks), kWarp, Counts::shared(range), stream, experts.data<i32>(),
         range, experts.numel(), experts.dim(1), found.before.data<i32>(),
         ChoiceRows{found.totals.data<i32>(), tokens.numel()}, tokens.data<i32>(), slots.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::place_choices(const Tensor& experts, const ExpertRange& range, i64 rows,
                                                    Tensor& tokens, Tensor& slots) {
  const cudaStream_t stream = cuda(experts).stream();
  if (tokens.numel() > 0)
    check_cuda(cudaMemsetAsync(tokens.raw(), 0xff, static_cast<std::size_t>(tokens.bytes()), stream),  // -1
               "cudaMemsetAsync");
  if (experts.numel() == 0) return;
  const Counts found(experts, range);
  launch(place_sorted, static_cast<unsigned>(found.chunks), kWarp, Counts::shared(range), stream, experts.data<i32>(),
         range, experts.numel(), experts.dim(1), found.before.data<i32>(), ChoiceRows{nullptr, rows},
         tokens.data<i32>(), slots.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::order_padded_rows(const Tensor& counts, const ExpertRange& range,
                                                        const ops::PaddedRows& rows, Tensor& order, Tensor& inverse) {
  constexpr int kThreads = 256;
  launch(place_padded, static_cast<unsigned>(range.count), kThreads, 0, cuda(order).stream(), counts.data<i32>(),
         counts.dim(0), counts.dim(1), range, rows, order.data<i32>(), inverse.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::tally_choices(const Tensor& experts, Tensor& counts, Tensor& dropped) {
  const i64 batch = counts.defined() ? counts.dim(0) : 1, num_experts = counts.defined() ? counts.dim(1) : 0;
  const ExpertRange counters{.first = 0, .count = num_experts + 1};
  const i64 parts = ceil_div(ceil_div(experts.dim(0), batch) * experts.dim(1), kTallyChoices);
  launch(tally, dim3(static_cast<unsigned>(batch), static_cast<unsigned>(parts)), kTallyThreads,
         Counts::shared(counters), cuda(experts).stream(), experts.data<i32>(), experts.dim(0), experts.dim(1),
         num_experts, counts.defined() ? counts.data<double>() : nullptr,
         dropped.defined() ? dropped.data<double>() : nullptr);
}

template <>
void ChoiceKernels<DeviceType::Cuda>::divide_by_mean(Tensor& counts) {
  launch(divide_by_mean_of, 1, kSumThreads, 0, cuda(counts).stream(), counts.data<double>(), counts.numel());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::add_dot(const Tensor& x, const Tensor& y, Tensor& sum) {
  launch(add_products, 1, kSumThreads, 0, cuda(x).stream(), x.data<double>(), y.data<double>(), x.numel(),
         sum.data<double>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::fill_progression(Tensor& table, const ops::Progression& values) {
  constexpr i64 kThreads = 256;
  launch(fill_table, static_cast<unsigned>((table.numel() + kThreads - 1) / kThreads), kThreads, 0,
         cuda(table).stream(), table.data<i32>(), table.numel(), table.dim(1), values);
}

template <>
void ChoiceKernels<DeviceType::Cuda>::distinct_groups(const Tensor& experts, const ops::ExpertGroups& groups,
                                                      Tensor& distinct) {
  constexpr i64 kThreads = 128;
  const i64 tokens = experts.dim(0);
  launch(find_distinct_groups, static_cast<unsigned>((tokens + kThreads - 1) / kThreads), kThreads, 0,
         cuda(experts).stream(), experts.data<i32>(), tokens, experts.dim(1), groups.groups.data<i32>(),
         groups.groups.dim(0), groups.groups.dim(1), groups.offsets.data<i32>(), tokens / groups.offsets.numel(),
         distinct.dim(1), distinct.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::drop_overflow(const Tensor& experts, const Tensor& weights, const Tensor& order,
                                                    const ops::Capacity& capacity, i64 first, Tensor& kept) {
  constexpr int kThreads = 1024;
  const cudaStream_t stream = cuda(experts).stream();
  const i64 topk = experts.dim(1), begin = first * topk;
  check_cuda(cudaMemcpyAsync(kept.raw(), experts.data<i32>() + begin, static_cast<std::size_t>(kept.bytes()),
                             cudaMemcpyDeviceToDevice, stream),
             "cudaMemcpyAsync");
  if (capacity.max_choices >= experts.numel()) return;
  const WeightedChoices x{experts.data<i32>(), weights.data<float>(), order.data<i32>(), experts.numel(), topk};
  launch(drop_beyond_capacity, static_cast<unsigned>(capacity.num_experts), kThreads, 0, stream, x,
         capacity.max_choices, begin, kept.numel(), kept.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cuda>::permutation_from_runs(const Tensor& runs, Tensor& order, Tensor& inverse) {
  constexpr int kThreads = 128;
  launch(place_runs, static_cast<unsigned>(runs.dim(0)), kThreads, 0, cuda(runs).stream(), runs.data<i32>(),
         order.data<i32>(), inverse.data<i32>());
}

}  // namespace mcpp
