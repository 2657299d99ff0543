#include "megatron_cpp/step/logit_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/config/block_spec.h"
#include "tensor/transfer.h"

namespace mcpp {

double qk_factor(const QkRows& rows, std::span<const double> ratios, double alpha) {
  const auto group = ratios.subspan(static_cast<std::size_t>(rows.group), static_cast<std::size_t>(rows.heads));
  const double ratio = ratios[static_cast<std::size_t>(rows.head)],
               of_keys = std::pow(std::ranges::max(group), 1 - alpha);
  switch (rows.kind) {
    case QkRows::Kind::Key:
      return of_keys;
    case QkRows::Kind::Query:
      return ratio / of_keys;
    case QkRows::Kind::RotaryQuery:
      return ratio;
  }
  fail(ExitCode::Internal, "unknown rows of attention");
}

LogitStats::LogitStats(const ModelConfig& config, const OptimizerConfig& optimizer, std::span<GPTModel* const> models,
                       Communicator& world, Device& device)
    : has_clip_(optimizer.qk_clip),
      threshold_(optimizer.qk_clip_threshold),
      alpha_(optimizer.qk_clip_alpha),
      layers_(config.num_blocks()),
      world_(world),
      device_(device) {
  for (const BlockSpec& block : block_specs(config))
    if (const auto attention = block.core_attention()) columns_ = std::max(columns_, attention->num_heads);
  for (GPTModel* model : models)
    attentions_.insert(attentions_.end(), model->attentions().begin(), model->attentions().end());
}

void LogitStats::record(bool is_recording) {
  is_recording_ = is_recording && columns_ > 0;
  for (const auto& [layer, attention] : attentions_) attention->attention_logits()->record(is_recording_);
  table_.clear();
  clipped_heads_.clear();
}

void LogitStats::max_over_ranks() {
  if (!is_recording_) return;
  table_.assign(static_cast<std::size_t>(layers_ * columns_), -std::numeric_limits<double>::infinity());
  for (const auto& [layer, attention] : attentions_) {
    const AttentionLogits& logits = *attention->attention_logits();
    std::ranges::copy(logits.values(), row(layer).begin() + logits.first_head());
  }
  Tensor table = Tensor::empty({layers_ * columns_}, DType::F64, device_, MemoryClass::Workspace);
  write_values(std::span<const double>(table_), table);
  world_.all_reduce(table, ReduceOp::Max).wait();
  table_ = read_values<double>(table);
}

RowScales LogitStats::clip() {
  RowScales scales;
  if (!has_clip_ || table_.empty()) return scales;
  clipped_heads_.assign(static_cast<std::size_t>(layers_), 0);
  std::vector<double> ratios(table_.size(), 1.0);
  for (std::size_t i = 0; i < table_.size(); ++i) {
    if (table_[i] <= threshold_) continue;
    ratios[i] = threshold_ / table_[i];
    ++clipped_heads_[i / static_cast<std::size_t>(columns_)];
  }
  for (const auto& [layer, attention] : attentions_) {
    if (clipped_heads_[static_cast<std::size_t>(layer)] == 0) continue;
    const auto of_layer = std::span<const double>(ratios).subspan(static_cast<std::size_t>(layer * columns_),
                                                                  static_cast<std::size_t>(columns_));
    attention->visit_qk_rows([&](const Param& param, const QkRows& rows) {
      const double factor = qk_factor(rows, of_layer, alpha_);
      if (factor != 1) scales[&param].push_back({rows.first, rows.count, factor});
    });
  }
  return scales;
}

std::vector<LayerLogits> LogitStats::layers() const {
  std::vector<LayerLogits> result;
  if (table_.empty()) return result;
  for (i64 layer = 0; layer < layers_; ++layer) {
    const auto begin = table_.begin() + layer * columns_;
    const double largest = *std::max_element(begin, begin + columns_);
    if (largest == -std::numeric_limits<double>::infinity()) continue;
    const i64 clipped = clipped_heads_.empty() ? 0 : clipped_heads_[static_cast<std::size_t>(layer)];
    result.push_back({.layer = layer, .largest = largest, .clipped_heads = clipped});
  }
  return result;
}

}  // namespace mcpp
