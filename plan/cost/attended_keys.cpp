#include "plan/cost/attended_keys.h"

#include <algorithm>
#include <cmath>

#include "base/integer_math.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Mean document length, in samples, above which documents count as unbounded.
constexpr double kLongDocument = 1e4;

/// Mean of the minimum of three: preceding tokens in the document, preceding tokens in the sample, and the window. The
/// first exceeds x with probability exp(-x / mean), the second with 1 - x / s; this is the integral of their product up
/// to the window.
double attended_in_documents(const ModelConfig& m, i64 layer, double mean) {
  const double s = real(m.seq_length), window = m.window_of(layer) == 0 ? s : std::min(s, real(m.window_of(layer)));
  const double left = std::exp(-window / mean);
  return mean * -std::expm1(-window / mean) - mean * (mean * (1 - left) - left * window) / s;
}

}  // namespace

double mean_attended_keys(const Workload& work) {
  const ModelConfig& m = work.model;
  double sum = 0;
  for (i64 layer = 0; layer < m.num_layers; ++layer) {
    // For much longer documents a sample is a part of one, and the difference below would cancel catastrophically.
    const bool ends = work.document_tokens > 0 && work.document_tokens < kLongDocument * real(m.seq_length);
    sum += ends ? attended_in_documents(m, layer, work.document_tokens) : attended_keys(m, layer);
  }
  return sum / real(m.num_layers);
}

}  // namespace mcpp
