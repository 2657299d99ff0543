#include "megatron_cpp/monitor/metrics/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Formats local time as "2026-01-31 23:59:59.123456".
std::string time_stamp(std::chrono::system_clock::time_point now) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(
      std::chrono::system_clock::time_point(std::chrono::floor<std::chrono::seconds>(now.time_since_epoch())));
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  const std::string micros = std::to_string((since_epoch % 1000000 + 1000000) % 1000000);
  return str(text.data(), ".", std::string(6 - micros.size(), '0'), micros);
}

std::string padded(i64 number, std::size_t width) {
  return pad_left(std::to_string(number), width);
}

}  // namespace

void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices) {
  const double seconds = stats.elapsed_ms / 1000;
  if (seconds > 0) {
    stats.tokens_per_second = tokens / seconds;
    stats.tflops = flops / seconds / 1e12 / static_cast<double>(devices);
  }
  if (peak_tflops > 0) stats.mfu = stats.tflops / peak_tflops;
  stats.eta_seconds = static_cast<double>(stats.train_iters - stats.iteration) * seconds;
}

std::string iteration_line(const IterationStats& stats, std::chrono::system_clock::time_point now) {
  std::string line =
      str(" [", time_stamp(now), "] iteration ", padded(stats.iteration, 8), "/", padded(stats.train_iters, 8), " |");
  const auto field = [&](const char* name, const std::string& value) { line += str(" ", name, ": ", value, " |"); };
  field("consumed samples", padded(stats.consumed_samples, 12));
  field("elapsed time per iteration (ms)", fixed(stats.elapsed_ms, 1));
  field("throughput per GPU (TFLOP/s/GPU)", fixed(stats.tflops, stats.tflops < 1 ? 3 : 1));
  field("learning rate", scientific(stats.learning_rate, 6));
  field("global batch size", padded(stats.global_batch_size, 5));
  field("lm loss", scientific(stats.lm_loss, 6));
  field("loss scale", fixed(stats.loss_scale, 1));
  field("grad norm", fixed(stats.grad_norm, 3));
  if (stats.num_zeros) field("num zeros", fixed(*stats.num_zeros, 0));
  if (stats.params_norm) field("params norm", fixed(*stats.params_norm, 3));
  field("number of skipped iterations", padded(stats.skipped_iterations, 3));
  field("number of nan iterations", padded(stats.nan_iterations, 3));
  if (!stats.experts.empty()) {
    const ExpertLayerStats experts = summarize(stats.experts);
    field("largest expert load", fixed(experts.max_load, 2));
    if (experts.balance_loss > 0) field("load balancing loss", fixed(experts.balance_loss, 4));
    if (experts.z_loss > 0) field("z loss", fixed(experts.z_loss, 4));
    if (experts.dropped > 0) field("dropped tokens", fixed(100 * experts.dropped, 2) + "%");
  }
  field("tokens/s", fixed(stats.tokens_per_second, 0));
  if (stats.mfu) field("MFU", fixed(*stats.mfu * 100, 1) + "%");
  if (!stats.ranks.empty()) {
    const RankStats ranks = mean_of(stats.ranks);
    field("bubble", fixed(ranks.bubble * 100, 1) + "%");
    field("exposed communication", fixed(ranks.exposed_communication * 100, 1) + "%");
    field("peak memory", human_bytes(ranks.peak_memory_bytes));
  }
  field("ETA", human_seconds(stats.eta_seconds));
  return line;
}

std::string progress_line(const IterationStats& stats) {
  return str("iteration ", stats.iteration, "/", stats.train_iters, " | loss ", fixed(stats.lm_loss, 3), " | ",
             human_count(stats.tokens_per_second), " tokens/s | ETA ", human_seconds(stats.eta_seconds));
}

double ValidationStats::perplexity() const {
  return std::exp(std::isnan(lm_loss) ? lm_loss : std::min(20.0, lm_loss));
}

std::string validation_lines(const ValidationStats& stats) {
  const std::string line =
      str(" ", stats.split, " loss at iteration ", stats.iteration, " | lm loss value: ", scientific(stats.lm_loss, 6),
          " | lm loss PPL: ", scientific(stats.perplexity(), 6), " | ");
  const std::string rule(line.size(), '-');
  return str(rule, "\n", line, "\n", rule);
}

}  // namespace mcpp
