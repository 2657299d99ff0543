#include "optimizer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace mcpp {
namespace {

/// Converts a length given in iterations or in samples to samples.
double to_samples(i64 iterations, i64 samples, i64 global_batch_size) {
  return static_cast<double>(samples > 0 ? samples : iterations * global_batch_size);
}

/// Returns the cosine decay from 1 at ratio 0 to 0 at ratio 1.
double cosine_decay(double ratio) {
  return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0);
}

double wsd_coefficient(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::Exponential:
      return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::Linear:
      return 1.0 - ratio;
    case WsdDecayStyle::Cosine:
      return cosine_decay(ratio);
    case WsdDecayStyle::MinusSqrt:
      return 1.0 - std::sqrt(ratio);
  }
  fail(ExitCode::Internal, "unknown WSD decay style");
}

}  // namespace

LrSchedule::LrSchedule(const OptimizerConfig& config, const TrainingLength& length) : config_(config) {
  const i64 batch = length.global_batch_size;
  check_input((length.train_iters > 0) != (length.train_samples > 0) && batch > 0,
              "training.train_iters, training.train_samples: exactly one of them must be above 0 (have ",
              length.train_iters, " and ", length.train_samples, "), and the global batch size must be above 0");
  if (length.train_iters > 0) samples_per_iteration_ = batch;
  training_ = to_samples(length.train_iters, length.train_samples, batch);
  const bool has_decay = config.lr_decay_iters > 0 || config.lr_decay_samples > 0;
  decay_ = has_decay ? to_samples(config.lr_decay_iters, config.lr_decay_samples, batch) : training_;
  warmup_ = config.lr_warmup_fraction > 0 ? config.lr_warmup_fraction * decay_
                                          : to_samples(config.lr_warmup_iters, config.lr_warmup_samples, batch);
  wsd_decay_ = to_samples(config.lr_wsd_decay_iters, config.lr_wsd_decay_samples, batch);
  check_input(warmup_ < decay_, "optimizer.lr_warmup_iters, lr_warmup_samples: the warm-up of ", warmup_,
              " samples must be shorter than the decay of ", decay_,
              " samples (optimizer.lr_decay_iters, lr_decay_samples; by default the entire training)");
  check_input(wsd_decay_ <= decay_, "optimizer.lr_wsd_decay_iters, lr_wsd_decay_samples: ", wsd_decay_,
              " samples are more than the entire decay of ", decay_,
              " samples (optimizer.lr_decay_iters, lr_decay_samples; by default the entire training)");
}

i64 LrSchedule::position(i64 trained_iterations, i64 trained_samples) const {
  return samples_per_iteration_ > 0 ? trained_iterations * samples_per_iteration_ : trained_samples;
}

double LrSchedule::lr(i64 position) const {
  const double n = static_cast<double>(position);
  if (warmup_ > 0 && n <= warmup_) {
    return config_.lr_warmup_init + (config_.lr - config_.lr_warmup_init) * n / warmup_;
  }
  if (config_.lr_decay_style == LrDecayStyle::Constant) return config_.lr;
  if (n > decay_) return config_.min_lr;
  if (config_.lr_decay_style == LrDecayStyle::InverseSquareRoot) {
    const double rate = config_.lr * std::sqrt(std::max(warmup_, 1.0)) / std::sqrt(std::max(n, 1.0));
    return std::max(config_.min_lr, rate);
  }
  return config_.min_lr + decay_coefficient(n) * (config_.lr - config_.min_lr);
}

double LrSchedule::decay_coefficient(double position) const {
  const double ratio = (position - warmup_) / (decay_ - warmup_);
  switch (config_.lr_decay_style) {
    case LrDecayStyle::Linear:
      return 1.0 - ratio;
    case LrDecayStyle::Cosine:
      return cosine_decay(ratio);
    case LrDecayStyle::Wsd: {
      const double anneal_start = decay_ - wsd_decay_;
      if (position <= anneal_start) return 1.0;
      return wsd_coefficient(config_.lr_wsd_decay_style, (position - anneal_start) / wsd_decay_);
    }
    case LrDecayStyle::Constant:
    case LrDecayStyle::InverseSquareRoot:
      break;
  }
  fail(ExitCode::Internal, "this learning rate does not decay between two values");
}

double LrSchedule::weight_decay(i64 position) const {
  if (config_.weight_decay_incr_style == WeightDecayIncrStyle::Constant) return config_.weight_decay;
  const double ratio = static_cast<double>(position) / training_;
  if (ratio > 1) return config_.end_weight_decay;
  const bool is_linear = config_.weight_decay_incr_style == WeightDecayIncrStyle::Linear;
  const double coefficient = is_linear ? ratio : cosine_decay(1 - ratio);
  return config_.start_weight_decay + coefficient * (config_.end_weight_decay - config_.start_weight_decay);
}

}  // namespace mcpp
