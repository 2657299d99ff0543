#include "plan/cost/seen_keys.h"

#include <algorithm>
#include <cmath>

#include "model/flops.h"
#include "plan/hardware/real.h"

namespace mcpp {
namespace {

/// Of so many samples' length.
constexpr double kLongDocument = 1e4;

/// The mean of the least of three: what is before a query in its document, in its sample, and the window. The chance
/// that the first is above x is exp(-x / mean), and of the second 1 - x / s; the integral of both up to the window.
double seen_in_documents(const ModelConfig& m, i64 layer, double mean) {
  const double s = real(m.seq_length), window = m.window_of(layer) == 0 ? s : std::min(s, real(m.window_of(layer)));
  const double left = std::exp(-window / mean);
  return mean * -std::expm1(-window / mean) - mean * (mean * (1 - left) - left * window) / s;
}

}  // namespace

double mean_seen_keys(const Workload& work) {
  const ModelConfig& m = work.model;
  double sum = 0;
  for (i64 layer = 0; layer < m.num_layers; ++layer) {
    // Of much longer documents a sample is a part of one, and the difference below would lose all digits.
    const bool ends = work.document_tokens > 0 && work.document_tokens < kLongDocument * real(m.seq_length);
    sum += ends ? seen_in_documents(m, layer, work.document_tokens) : seen_keys(m, layer);
  }
  return sum / real(m.num_layers);
}

}  // namespace mcpp
