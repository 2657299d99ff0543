#include "plan/cost/kernel_times.h"

#include "tensor/dtype.h"

namespace mcpp {
namespace {

KernelTimes by_bytes(const Hardware& hardware, const KernelTraits& program, const Workload& work) {
  const double wide = 4, element = static_cast<double>(size_of(work.dtype));
  const double sweep = hardware.traffic_seconds(element);
  const auto seconds = [&](const MemoryPasses& s) { return PassSeconds{s.forward * sweep, s.backward * sweep}; };
  // The norm reads gradients; the update reads them, reads and writes states and master weights, and writes weights.
  const double states = work.states.matrix_states + work.states.master(work.dtype);
  return {.norm = seconds(program.norm),
          .residual = seconds(program.residual),
          .heads = seconds(program.heads),
          .activation = seconds(program.activation),
          .bias = {},
          .dropped_score = {},
          .embedding = {2 * sweep, 3 * sweep},
          .loss = program.loss * sweep,
          .copy = 2 * sweep,
          .update = hardware.traffic_seconds(wide * (2 + 2 * states) + element)};
}

/// Fraction of queries, keys and values that is rotated.
double rotated_part(const ModelConfig& m) {
  if (m.position_embedding_type != PositionEmbedding::Rope) return 0;
  const auto queries = static_cast<double>(m.num_attention_heads), keys = static_cast<double>(m.query_groups());
  return (queries + keys) / (queries + 2 * keys);
}

KernelTimes as_measured(const Hardware& hardware, const MeasuredRates& rates, const Workload& work) {
  const ModelConfig& m = work.model;
  const auto pair = [](const std::vector<double>& forward, const std::vector<double>& backward, std::size_t kind) {
    return PassSeconds{1e-9 * forward[kind], 1e-9 * backward[kind]};
  };
  const double rotated = 1e-9 * rotated_part(m);
  return {.norm = pair(rates.norm_forward, rates.norm_backward, static_cast<std::size_t>(m.normalization)),
          .residual = pair(rates.residual_forward, rates.residual_backward, m.hidden_dropout > 0 ? 1 : 0),
          .heads = {rotated * rates.rope_forward, rotated * rates.rope_backward},
          .activation =
              pair(rates.activation_forward, rates.activation_backward, static_cast<std::size_t>(m.activation_func)),
          .bias = {1e-9 * rates.bias_forward, 1e-9 * rates.bias_backward},
          .dropped_score = {1e-9 * rates.dropped_score_forward, 1e-9 * rates.dropped_score_backward},
          .embedding = {1e-9 * rates.embedding_forward, 1e-9 * rates.embedding_backward},
          .loss = 1e-9 * rates.loss,
          .copy = 2 * hardware.traffic_seconds(static_cast<double>(size_of(work.dtype))),
          .update = 1e-9 * rates.update};
}

}  // namespace

KernelTimes kernel_times(const Hardware& hardware, const KernelTraits& program, const Workload& work) {
  const MeasuredRates* measured = hardware.measured(work.products);
  return measured ? as_measured(hardware, *measured, work) : by_bytes(hardware, program, work);
}

}  // namespace mcpp
