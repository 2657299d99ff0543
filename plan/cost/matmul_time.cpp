#include "plan/cost/matmul_time.h"

#include <algorithm>
#include <array>

#include "base/integer_math.h"

namespace mcpp {
namespace {

/// Depth at which a tile spends as long loading its first operands and storing its result as multiplying.
constexpr double kRamp = 256;
/// Throughput of long trainings relative to that of single products, because power and temperature limit clocks. Fitted
/// to four published trainings (docs/planning.md); the same for all devices.
constexpr double kSustained = 0.898;
/// Smaller tiles reuse their operands less.
constexpr double kSmallTilePenalty = 1.08;

struct Tile {
  i64 rows, columns;
  double penalty;
};

/// Seconds with tiles of one size, each of which has 1 / split of the depth.
double tiled_seconds(const Hardware& hardware, ProductType type, const ProductShape& s, const Tile& tile, i64 split) {
  const i64 cores = hardware.device.cores;
  const i64 tiles = ceil_div(s.m, tile.rows) * ceil_div(s.n, tile.columns) * s.batch * split;
  const double waves = static_cast<double>(ceil_div(tiles, cores) * cores);
  const double depth = static_cast<double>(s.k) / static_cast<double>(split);
  const double flops = 2 * waves * static_cast<double>(tile.rows * tile.columns) * depth;
  double seconds = flops * tile.penalty / (kSustained * hardware.product_flops(type)) * (1 + kRamp / depth);
  if (split > 1)  // partial sums, written and read in fp32
    seconds += hardware.traffic_seconds(8.0 * static_cast<double>(s.m * s.n * s.batch * split) / 2);
  return seconds;
}

}  // namespace

double product_seconds(const Hardware& hardware, ProductType type, const ProductShape& s, double output_bytes,
                       ProductPass pass) {
  if (const MeasuredRates* measured = hardware.measured(type)) return measured->product_seconds(s, pass);
  const i64 rows = hardware.device.tile_rows, columns = hardware.device.tile_columns, small = std::min(rows, columns);
  const std::array<Tile, 3> tiles{{{rows, columns, 1}, {columns, rows, 1}, {small, small, kSmallTilePenalty}}};
  double best = tiled_seconds(hardware, type, s, tiles[0], 1);
  for (const i64 split : {1, 2, 4, 8}) {
    if (split > 1 && s.k / split < static_cast<i64>(kRamp)) break;
    for (const Tile& tile : tiles) best = std::min(best, tiled_seconds(hardware, type, s, tile, split));
  }
  const double operand = type == ProductType::Fp32 ? 4 : type == ProductType::Fp8 ? 1 : 2;
  const double elements = static_cast<double>(s.batch) * static_cast<double>(s.k) * static_cast<double>(s.m + s.n);
  const double bytes =
      operand * elements + output_bytes * static_cast<double>(s.batch * s.m) * static_cast<double>(s.n);
  return std::max(best, hardware.traffic_seconds(bytes)) + hardware.gap_seconds();
}

}  // namespace mcpp
