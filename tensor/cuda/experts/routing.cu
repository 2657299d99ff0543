// Routers of mixtures of experts: one warp per row of logits.
#include "tensor/cuda/reduce_rows.cuh"
#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr double kTiny = 1e-20;  // added to sums of scores before division to avoid 0 / 0

template <class W>
__device__ __forceinline__ W sigmoid(W x) {
  return W{1} / (W{1} + exp(-x));
}

/// Returns the score of a function that maps each logit alone.
template <class W>
__device__ __forceinline__ W score_of(W x, RouterScore score) {
  if (score == RouterScore::Sigmoid) return sigmoid(x);
  return x != x ? x : sqrt((x > 0 ? x : W{0}) + log1p(exp(x > 0 ? -x : x)));
}
/// Returns the derivative of the logarithm of a score y by its logit, without the part that normalization adds.
template <class W>
__device__ __forceinline__ W relative_slope(W y, RouterScore score) {
  if (score == RouterScore::Softmax) return W{1};
  if (score == RouterScore::Sigmoid) return W{1} - y;
  const W square = y * y;  // log(1 + exp(x)), whose derivative is 1 - exp(-square)
  return square > 0 ? -expm1(-square) / (2 * square) : static_cast<W>(0.5);
}

/// Calls f(i) for this lane's elements of a row of n.
template <class F>
__device__ __forceinline__ void each_of_lane(i64 n, F&& f) {
  for (i64 i = threadIdx.x % kWarp; i < n; i += kWarp) f(i);
}
/// Returns on every lane the sum of f(i) over a row.
template <class W, class F>
__device__ __forceinline__ W row_sum(i64 n, F&& f) {
  W sum = 0;
  each_of_lane(n, [&](i64 i) { sum += f(i); });
  return warp_sum(sum);
}

/// Returns the row of the calling warp, or -1.
__device__ __forceinline__ i64 row_of_warp(i64 rows) {
  const i64 row = blockIdx.x * i64{blockDim.x / kWarp} + threadIdx.x / kWarp;
  return row < rows ? row : -1;
}
unsigned blocks_for(i64 rows, int warps = kWarps) {
  return static_cast<unsigned>((rows + warps - 1) / warps);
}

/// Softmax of a row: softmax(x)[i] = exp(x[i] - largest) / sum.
template <class W>
struct Softmax {
  W largest, sum;

  /// Computes the statistics of f(0) to f(n - 1) with one warp.
  template <class F>
  __device__ Softmax(i64 n, F&& f) {
    W maximum = -INFINITY;
    each_of_lane(n, [&](i64 i) {
      const W x = f(i);
      maximum = x > maximum || x != x ? x : maximum;
    });
    largest = warp_max(maximum);
    sum = row_sum<W>(n, [&](i64 i) { return exp(f(i) - largest); });
  }
  __device__ W operator()(W x) const { return exp(x - largest) / sum; }
  __device__ W lse() const { return largest + log(sum); }
};

/// Candidate for the best; number -1 = none.
template <class W>
struct RankedExpert {
  W value = 0;
  int number = -1;

  /// Returns true if this candidate ranks before x: higher score, NaN above all; ties by lower number.
  __device__ bool is_before(const RankedExpert& x) const {
    if (number < 0 || x.number < 0) return number >= 0;
    const bool nan = value != value, other_nan = x.value != x.value;
    if (nan != other_nan) return nan;
    if (!nan && value != x.value) return value > x.value;
    return number < x.number;
  }
};

/// Returns the best of f(0) to f(n - 1) after `last` among those that is_allowed(i), with one warp.
template <class W, class F, class IsAllowed>
__device__ RankedExpert<W> next_best(i64 n, const RankedExpert<W>& last, F&& f, IsAllowed&& is_allowed) {
  RankedExpert<W> best;
  each_of_lane(n, [&](i64 i) {
    const RankedExpert<W> x{f(i), static_cast<int>(i)};
    if (is_allowed(i) && (last.number < 0 || last.is_before(x)) && x.is_before(best)) best = x;
  });
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const RankedExpert<W> other{__shfl_xor_sync(~0u, best.value, offset), __shfl_xor_sync(~0u, best.number, offset)};
    if (other.is_before(best)) best = other;
  }
  return best;
}

/// Writes the scores by which experts are chosen. Without a bias or sums of groups these are the logits, which have the
/// same order as scores and avoid their rounding.
template <class W>
__device__ void write_scores(const W* x, const float* bias, const RoutingRule& rule, i64 n, W* scores) {
  const bool is_raw = !bias && rule.groups == 0;
  if (!is_raw && rule.score == RouterScore::Softmax && rule.pre_softmax) {
    const Softmax<W> softmax(n, [&](i64 i) { return x[i]; });
    each_of_lane(n, [&](i64 i) { scores[i] = softmax(x[i]); });
  } else {
    const bool is_logit = is_raw || rule.score == RouterScore::Softmax;
    each_of_lane(n, [&](i64 i) { scores[i] = is_logit ? x[i] : score_of(x[i], rule.score); });
  }
  if (bias) each_of_lane(n, [&](i64 i) { scores[i] += static_cast<W>(bias[i]); });
  __syncwarp();
}

/// Sets is_best[g] to 1 for the best groups, otherwise to 0. `sums` is scratch of one value per group.
template <class W>
__device__ void mark_groups(const W* scores, const RoutingRule& rule, i64 n, W* sums, W* is_best) {
  const auto any = [](i64) { return true; };
  const i64 size = n / rule.groups;
  for (i64 g = 0; g < rule.groups; ++g) {
    W sum = 0;
    RankedExpert<W> last;
    for (i64 j = 0; j < rule.scores_per_group(); ++j) {
      last = next_best(
          size, last, [&](i64 i) { return scores[g * size + i]; }, any);
      sum += last.value;
    }
    if (threadIdx.x % kWarp == 0) sums[g] = sum, is_best[g] = 0;
  }
  __syncwarp();
  RankedExpert<W> last;
  for (i64 j = 0; j < rule.group_topk; ++j) {
    last = next_best(
        rule.groups, last, [&](i64 g) { return sums[g]; }, any);
    if (threadIdx.x % kWarp == 0) is_best[last.number] = 1;
  }
  __syncwarp();
}

/// Chooses the experts of each row. Shared memory: for each warp one score per expert, and two values per group.
template <class W>
__global__ void choose(const W* logits, const float* bias, const RoutingRule rule, i64 rows, i64 n, i32* experts) {
  const i64 row = row_of_warp(rows);
  if (row < 0) return;
  W* scores = dynamic_shared<W>() + threadIdx.x / kWarp * (n + 2 * rule.groups);
  write_scores(logits + row * n, bias, rule, n, scores);
  W *sums = scores + n, *is_best = sums + rule.groups;
  if (rule.groups > 0) mark_groups(scores, rule, n, sums, is_best);
  const i64 size = rule.groups > 0 ? n / rule.groups : n;
  RankedExpert<W> last;
  for (i64 j = 0; j < rule.topk; ++j) {
    last = next_best(
        n, last, [&](i64 i) { return scores[i]; },
        [&](i64 i) { return rule.groups == 0 || is_best[i / size] != W{0}; });
    if (threadIdx.x % kWarp == 0) experts[row * rule.topk + j] = last.number;
  }
}

/// Weights of a row's experts without the scale: raw(logit) / divisor.
template <class W>
struct ChosenScores {
  RouterScore score;
  W largest = 0, divisor = 1;

  __device__ ChosenScores(const W* logits, const i32* experts, const RoutingRule& rule, i64 n) : score(rule.score) {
    const auto chosen = [&](i64 j) { return logits[experts[j]]; };
    if (score != RouterScore::Softmax) {
      if (rule.topk > 1)
        divisor = row_sum<W>(rule.topk, [&](i64 j) { return score_of(chosen(j), score); }) + static_cast<W>(kTiny);
    } else {
      const Softmax<W> softmax =
          rule.pre_softmax ? Softmax<W>(n, [&](i64 i) { return logits[i]; }) : Softmax<W>(rule.topk, chosen);
      largest = softmax.largest;
      divisor = softmax.sum;
    }
  }
  __device__ W raw(W logit) const {
    return score == RouterScore::Softmax ? exp(logit - largest) : score_of(logit, score);
  }
};

template <class W>
__global__ void __launch_bounds__(kThreads)
    weigh(const W* logits, const i32* experts, const RoutingRule rule, i64 rows, i64 n, W* weights) {
  const i64 row = row_of_warp(rows), k = rule.topk;
  if (row < 0) return;
  const W* x = logits + row * n;
  const i32* ids = experts + row * k;
  const ChosenScores<W> scores(x, ids, rule, n);
  each_of_lane(
      k, [&](i64 j) { weights[row * k + j] = scores.raw(x[ids[j]]) / scores.divisor * static_cast<W>(rule.scale); });
}

template <class W>
__global__ void __launch_bounds__(kThreads) weigh_backward(const W* d_weights, const W* logits, const i32* experts,
                                                           const RoutingRule rule, i64 rows, i64 n, W* d_logits) {
  const i64 row = row_of_warp(rows), k = rule.topk;
  if (row < 0) return;
  const W *x = logits + row * n, *dw = d_weights + row * k;
  const i32* ids = experts + row * k;
  W* dx = d_logits + row * n;
  const ChosenScores<W> scores(x, ids, rule, n);
  const W scale = static_cast<W>(rule.scale);
  W mean = row_sum<W>(k, [&](i64 j) { return scale * dw[j] * scores.raw(x[ids[j]]) / scores.divisor; });
  if (rule.score != RouterScore::Softmax && k == 1) mean = 0;
  const bool covers_all_experts = rule.pre_softmax && rule.score == RouterScore::Softmax;
  each_of_lane(n, [&](i64 i) { dx[i] = covers_all_experts ? -mean * (scores.raw(x[i]) / scores.divisor) : W{0}; });
  __syncwarp();  // the following code overwrites some
  each_of_lane(k, [&](i64 j) {
    const W y = scores.raw(x[ids[j]]);
    dx[ids[j]] = (scale * dw[j] - mean) * (y / scores.divisor) * relative_slope(y, rule.score);
  });
}

/// Scores of all experts of a row: raw(logit) / divisor.
template <class W>
struct BalancedScores {
  W largest, divisor, lse;

  __device__ static BalancedScores of(const W* x, RouterScore score, i64 n) {
    const Softmax<W> softmax(n, [&](i64 i) { return x[i]; });
    BalancedScores result{softmax.largest, softmax.sum, softmax.lse()};
    if (score != RouterScore::Softmax)
      result.divisor = row_sum<W>(n, [&](i64 i) { return score_of(x[i], score); }) + static_cast<W>(kTiny);
    return result;
  }
  __device__ W raw(W logit, RouterScore score) const {
    return score == RouterScore::Softmax ? exp(logit - largest) : score_of(logit, score);
  }
};

template <class W>
__global__ void __launch_bounds__(kThreads)
    find_scores(const W* logits, RouterScore score, i64 rows, i64 n, BalancedScores<W>* found) {
  const i64 row = row_of_warp(rows);
  if (row < 0) return;
  const BalancedScores<W> result = BalancedScores<W>::of(logits + row * n, score, n);
  if (threadIdx.x % kWarp == 0) found[row] = result;
}

/// Computes in sums[chunk] the sums over the chunk's rows, [batch, n], and of the squares of their lse. One block per
/// chunk.
template <class W>
__global__ void __launch_bounds__(kThreads)
    sum_scores(const W* logits, const BalancedScores<W>* rows_scores, RouterScore score, i64 rows, i64 rows_per_chunk,
               i64 batch, i64 n, double* sums) {
  const i64 begin = blockIdx.x * rows_per_chunk, end = min(rows, begin + rows_per_chunk);
  double* to = sums + blockIdx.x * (batch * n + 1);
  for (i64 i = threadIdx.x; i < batch * n; i += kThreads) {
    const i64 sample = i / n, e = i % n;
    double sum = 0;
    for (i64 r = begin + (sample - begin % batch + batch) % batch; r < end; r += batch) {
      const BalancedScores<W> scores = rows_scores[r];
      sum += static_cast<double>(scores.raw(logits[r * n + e], score) / scores.divisor);
    }
    to[i] = sum;
  }
  double squares = 0;
  for (i64 r = begin + threadIdx.x; r < end; r += kThreads) {
    const double lse = static_cast<double>(rows_scores[r].lse);
    squares += lse * lse;
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) to[batch * n] = squares;
}

/// Factors of a loss; `factors` and `multiplier` may be null.
struct LossFactors {
  const double *factors, *multiplier;
  double scale, z_scale;

  __device__ __forceinline__ double times(double x) const { return multiplier ? x * *multiplier : x; }
};

template <class W>
__global__ void __launch_bounds__(kThreads)
    add_score_gradients(const W* logits, RouterScore score, const LossFactors loss, i64 rows, i64 batch, i64 n,
                        W* d_logits) {
  const i64 row = row_of_warp(rows);
  if (row < 0) return;
  const W* x = logits + row * n;
  const double scale = loss.times(loss.scale);
  const auto f = [factors = loss.factors + row % batch * n, scale, has_factors = loss.factors != nullptr](i64 i) {
    return has_factors ? static_cast<W>(factors[i] * scale) : W{0};
  };
  W* dx = d_logits + row * n;
  const Softmax<W> softmax(n, [&](i64 i) { return x[i]; });
  const BalancedScores<W> scores = BalancedScores<W>::of(x, score, n);
  const W mean = row_sum<W>(n, [&](i64 i) { return f(i) * scores.raw(x[i], score); }) / scores.divisor;
  const W of_lse = 2 * static_cast<W>(loss.times(loss.z_scale)) * scores.lse;
  each_of_lane(n, [&](i64 i) {
    const W s = scores.raw(x[i], score), slope = s / scores.divisor * relative_slope(s, score);
    dx[i] += (f(i) - mean) * slope + softmax(x[i]) * of_lse;
  });
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule,
                                               Tensor& experts) {
  constexpr i64 kMaxSharedBytes = 48 << 10;
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_accumulate_dtype(logits.dtype(), [&]<class W>() {
    const i64 bytes = (n + 2 * rule.groups) * static_cast<i64>(sizeof(W));
    MCPP_CHECK(bytes <= kMaxSharedBytes, "choose_experts: ", n, " experts are too many for this GPU");
    const int warps = static_cast<int>(std::min<i64>(kWarps, kMaxSharedBytes / bytes));
    launch(choose<W>, blocks_for(rows, warps), warps * kWarp, static_cast<std::size_t>(bytes * warps), stream,
           logits.data<W>(), bias ? bias->data<float>() : nullptr, rule, rows, n, experts.data<i32>());
  });
}

template <>
void Kernels<DeviceType::Cuda>::routing_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule,
                                                Tensor& weights) {
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_accumulate_dtype(logits.dtype(), [&]<class W>() {
    launch(weigh<W>, blocks_for(rows), kThreads, 0, stream, logits.data<W>(), experts.data<i32>(), rule, rows, n,
           weights.data<W>());
  });
}

template <>
void Kernels<DeviceType::Cuda>::routing_weights_backward(const Tensor& d_weights, const Tensor& logits,
                                                         const Tensor& experts, const RoutingRule& rule,
                                                         Tensor& d_logits) {
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_accumulate_dtype(logits.dtype(), [&]<class W>() {
    launch(weigh_backward<W>, blocks_for(rows), kThreads, 0, stream, d_weights.data<W>(), logits.data<W>(),
           experts.data<i32>(), rule, rows, n, d_logits.data<W>());
  });
}

template <>
void Kernels<DeviceType::Cuda>::router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums,
                                                  Tensor& squares) {
  constexpr i64 kMinRows = 32, kMaxChunks = 512;
  const i64 rows = logits.dim(0), n = logits.dim(1), batch = sums.dim(0);
  CudaDevice& device = cuda(logits);
  const PartialSums<double> partial(rows, batch * n + 1, kMinRows, kMaxChunks, device);
  on_accumulate_dtype(logits.dtype(), [&]<class W>() {
    if (rows == 0) return;
    using Scores = BalancedScores<W>;
    const Tensor found = Tensor::empty({rows * static_cast<i64>(sizeof(Scores) / sizeof(W))}, logits.dtype(), device,
                                       MemoryClass::Workspace);
    auto* scores = static_cast<Scores*>(found.raw());
    const W* x = logits.data<W>();
    launch(find_scores<W>, blocks_for(rows), kThreads, 0, device.stream(), x, score, rows, n, scores);
    launch(sum_scores<W>, static_cast<unsigned>(partial.chunks), kThreads, 0, device.stream(), x, scores, score, rows,
           partial.rows_per_chunk, batch, n, partial.data());
  });
  partial.add_to(sums, 0, 0);
  partial.add_to(squares, batch * n, 0);
}

template <>
void Kernels<DeviceType::Cuda>::router_score_sums_backward(const Tensor& logits, RouterScore score,
                                                           const ops::RouterLoss& loss, Tensor& d_logits) {
  const auto data = [](const Tensor& t) { return t.defined() ? t.data<double>() : nullptr; };
  const LossFactors factors{data(loss.factors), data(loss.multiplier), loss.scale, loss.z_scale};
  const i64 batch = loss.factors.defined() ? loss.factors.dim(0) : 1;
  const i64 rows = logits.dim(0), n = logits.dim(1);
  if (rows == 0) return;
  const cudaStream_t stream = cuda(logits).stream();
  on_accumulate_dtype(logits.dtype(), [&]<class W>() {
    launch(add_score_gradients<W>, blocks_for(rows), kThreads, 0, stream, logits.data<W>(), score, factors, rows, batch,
           n, d_logits.data<W>());
  });
}

}  // namespace mcpp
