#include "plan/cost/kernel_times.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/integer_math.h"
#include "model/flops.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Returns the time per weight to update its average, which reads both and writes the average.
double ema_seconds(const Hardware& hardware, const Workload& work) {
  constexpr double kBytes = 3 * 4;
  return work.ema_interval > 0 ? hardware.traffic_seconds(kBytes) / static_cast<double>(work.ema_interval) : 0;
}

KernelTimes estimate_kernel_times(const Hardware& hardware, const KernelTraits& program, const Workload& work) {
  const double wide = 4, element = static_cast<double>(size_of(work.dtype));
  const double sweep = hardware.traffic_seconds(element);
  const auto seconds = [&](const MemoryPasses& s) { return PassSeconds{s.forward * sweep, s.backward * sweep}; };
  // The norm reads gradients; the update reads them, reads and writes states and master weights, and writes weights.
  const double states = work.states.matrix_states + work.states.master(work.dtype) - (work.ema_interval > 0 ? 1 : 0);
  return {.norm = seconds(program.norm),
          .residual = seconds(program.residual),
          .heads = seconds(program.heads),
          .rope = {},
          .activation = seconds(program.activation),
          .bias = {},
          .dropped_score = {},
          .embedding = {2 * sweep, 3 * sweep},
          .loss = program.loss * sweep,
          .copy = 2 * sweep,
          .update = hardware.traffic_seconds(wide * (2 + 2 * states) + element) + ema_seconds(hardware, work)};
}

KernelTimes measured_kernel_times(const Hardware& hardware, const MeasuredRates& rates, const Workload& work) {
  const ModelConfig& m = work.model;
  const auto pair = [](const std::vector<double>& forward, const std::vector<double>& backward, std::size_t kind) {
    return PassSeconds{1e-9 * forward[kind], 1e-9 * backward[kind]};
  };
  return {.norm = pair(rates.norm_forward, rates.norm_backward, static_cast<std::size_t>(m.normalization)),
          .residual = pair(rates.residual_forward, rates.residual_backward, m.hidden_dropout > 0 ? 1 : 0),
          .heads = {},
          .rope = {1e-9 * rates.rope_forward, 1e-9 * rates.rope_backward},
          .activation =
              pair(rates.activation_forward, rates.activation_backward, static_cast<std::size_t>(m.activation_func)),
          .bias = {1e-9 * rates.bias_forward, 1e-9 * rates.bias_backward},
          .dropped_score = {1e-9 * rates.dropped_score_forward, 1e-9 * rates.dropped_score_backward},
          .embedding = {1e-9 * rates.embedding_forward, 1e-9 * rates.embedding_backward},
          .loss = 1e-9 * rates.loss,
          .copy = 2 * hardware.traffic_seconds(static_cast<double>(size_of(work.dtype))),
          .update = 1e-9 * rates.update + ema_seconds(hardware, work)};
}

}  // namespace

KernelTimes kernel_times(const Hardware& hardware, const KernelTraits& program, const Workload& work) {
  const MeasuredRates* measured = hardware.measured(work.gemms());
  return measured ? measured_kernel_times(hardware, *measured, work) : estimate_kernel_times(hardware, program, work);
}

namespace {

/// Depth at which a tile spends as long loading its first operands and storing its result as multiplying.
constexpr double kRamp = 256;
/// Throughput of long runs relative to single GEMMs, because power and temperature limit clocks. Fitted to four
/// published runs (docs/planning.md); the same for all devices.
constexpr double kSustained = 0.898;
/// Smaller tiles reuse their operands less.
constexpr double kSmallTilePenalty = 1.08;

struct Tile {
  i64 rows, columns;
  double penalty;
};

/// Returns the seconds with tiles of one size, each of which has 1 / split of the depth.
double tiled_seconds(const Hardware& hardware, GemmType type, const MatmulShape& s, const Tile& tile, i64 split) {
  const i64 cores = hardware.device.cores;
  const i64 tiles = ceil_div(s.m, tile.rows) * ceil_div(s.n, tile.columns) * s.batch * split;
  const double waves = static_cast<double>(ceil_div(tiles, cores) * cores);
  const double depth = static_cast<double>(s.k) / static_cast<double>(split);
  const double flops = 2 * waves * static_cast<double>(tile.rows * tile.columns) * depth;
  double seconds = flops * tile.penalty / (kSustained * hardware.gemm_flops(type)) * (1 + kRamp / depth);
  if (split > 1)  // partial sums, written and read in fp32
    seconds += hardware.traffic_seconds(8.0 * static_cast<double>(s.m * s.n * s.batch * split) / 2);
  return seconds;
}

}  // namespace

double gemm_seconds(const Hardware& hardware, GemmType type, const MatmulShape& s, double output_bytes, GemmPass pass) {
  if (const MeasuredRates* measured = hardware.measured(type)) return measured->gemm_seconds(s, pass);
  const i64 rows = hardware.device.tile_rows, columns = hardware.device.tile_columns, small = std::min(rows, columns);
  const std::array<Tile, 3> tiles{{{rows, columns, 1}, {columns, rows, 1}, {small, small, kSmallTilePenalty}}};
  double best = tiled_seconds(hardware, type, s, tiles[0], 1);
  for (const i64 split : {1, 2, 4, 8}) {
    if (split > 1 && s.k / split < static_cast<i64>(kRamp)) break;
    for (const Tile& tile : tiles) best = std::min(best, tiled_seconds(hardware, type, s, tile, split));
  }
  const double elements = static_cast<double>(s.batch) * static_cast<double>(s.k) * static_cast<double>(s.m + s.n);
  const double bytes =
      operand_bytes(type) * elements + output_bytes * static_cast<double>(s.batch * s.m) * static_cast<double>(s.n);
  return std::max(best, hardware.traffic_seconds(bytes)) + hardware.gap_seconds();
}

namespace {

/// Keys during which a block of queries starts and ends.
constexpr double kAttentionRamp = 340;
/// Queries of a block, of which the last one of a head sees twice the mean number of keys. Chosen by the rates of 4 to
/// 128 heads over 4096 keys on a B200, which it matches within 15 % from 8 heads.
constexpr double kQueryBlock = 64;

}  // namespace

double attention_efficiency(const Hardware& hardware, i64 keys, i64 heads) {
  const double last_blocks = 2 * kQueryBlock * real(hardware.device.cores) / real(heads);
  return real(keys) / (real(keys) + std::max(kAttentionRamp, last_blocks));
}

namespace {

/// Mean document length, in samples, above which documents count as unbounded.
constexpr double kLongDocument = 1e4;

/// Returns the mean of the minimum of three: preceding tokens in the document, preceding tokens in the sample, and the
/// window. The first exceeds x with probability exp(-x / mean), the second with 1 - x / s; this is the integral of
/// their product up to the window.
double attended_in_documents(double s, i64 window_size, double mean) {
  const double window = window_size == 0 ? s : std::min(s, real(window_size));
  const double survival = std::exp(-window / mean);
  return mean * -std::expm1(-window / mean) - mean * (mean * (1 - survival) - survival * window) / s;
}

}  // namespace

double mean_attended_keys(const Workload& work, i64 window, i64 chunk) {
  const i64 s = work.model.seq_length;
  const double mean = work.document_tokens;
  // For much longer documents a sample is a part of one, and the difference above would cancel catastrophically.
  const bool has_document_ends = mean > 0 && mean < kLongDocument * real(s);
  const auto attended = [&](i64 keys) {
    return has_document_ends ? attended_in_documents(real(s), keys, mean) : attended_keys(keys, s);
  };
  if (chunk == 0 || chunk >= s) return attended(window);
  // Mean of n modulo the chunk, where n is the number of preceding tokens. Each chunk [begin, end) contributes the mean
  // of min(n, end) - min(n, begin), without the tokens that reach the next chunk, for which this is end - begin.
  const auto reach_probability = [&](i64 tokens) {
    return (1 - real(tokens) / real(s)) * (has_document_ends ? std::exp(-real(tokens) / mean) : 1);
  };
  double sum = 0;
  for (i64 begin = 0; begin < s; begin += chunk) {
    const i64 end = std::min(begin + chunk, s);
    sum += attended(end) - (begin > 0 ? attended(begin) : 0) - real(end - begin) * reach_probability(end);
  }
  return sum;
}

}  // namespace mcpp
