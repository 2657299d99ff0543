#include "megatron_cpp/monitor/console_sink.h"

#include <array>
#include <ctime>
#include <utility>

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::size_t kNameWidth = 48;

std::string dotted(const std::string& name) {
  const std::string begin = name + " ";
  return begin + std::string(begin.size() < kNameWidth ? kNameWidth - begin.size() : 0, '.') + ": ";
}

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
  for (std::size_t i = 0; i < stats.mtp_losses.size(); ++i)
    field(str("mtp_", i + 1, " loss").c_str(), scientific(stats.mtp_losses[i], 6));
  if (stats.output_z_loss > 0) field("output z loss", scientific(stats.output_z_loss, 6));
  field("loss scale", fixed(stats.loss_scale, 1));
  field("grad norm", fixed(stats.grad_norm, 3));
  if (stats.num_zeros) field("num zeros", fixed(*stats.num_zeros, 0));
  if (!stats.logits.empty())
    field("max attention logit", fixed(std::ranges::max(stats.logits, {}, &LayerLogits::largest).largest, 2));
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

std::string validation_lines(const ValidationStats& stats) {
  const std::string line =
      str(" ", stats.split, " loss at iteration ", stats.iteration, " | lm loss value: ", scientific(stats.lm_loss, 6),
          " | lm loss PPL: ", scientific(stats.perplexity(), 6), " | ");
  const std::string rule(line.size(), '-');
  return str(rule, "\n", line, "\n", rule);
}

std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option) {
  if (timers.empty()) return "";
  std::string text = option == TimingLogOption::Minmax ? "(min, max) time across ranks (ms):"
                     : option == TimingLogOption::Max  ? "max time across ranks (ms):"
                                                       : "times across ranks (ms):";
  for (const TimerStats& timer : timers) {
    if (option == TimingLogOption::All) {
      text += str("\n  ", timer.name, ":");
      for (const auto& [rank, ms] : timer.ranks)
        text += str("\n     rank ", pad_left(str(rank), 2), ": ", fixed(ms, 2));
    } else if (option == TimingLogOption::Minmax) {
      text += str("\n    ", dotted(timer.name), "(", fixed(timer.min(), 2), ", ", fixed(timer.max(), 2), ")");
    } else {
      text += str("\n    ", dotted(timer.name), fixed(timer.max(), 2));
    }
  }
  return text;
}

std::string layer_table(const StepStatistics& step) {
  const auto column = [](const std::string& text) { return pad_left(text, 16); };
  const auto number = [&](const std::optional<double>& x) { return column(x ? scientific(*x, 4) : ""); };
  std::string text = str(pad_right("  layer", 28), column("grad norm"), column("params norm"), column("update norm"),
                         column("activation rms"), column("activation max"));
  for (const StepStatistics::Layer& layer : step.layers)
    text += str("\n", pad_right("  " + layer.name, 28), number(layer.grad_norm), number(layer.params_norm),
                number(layer.update_norm), number(layer.activation_rms), number(layer.activation_max));
  return text;
}

std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology) {
  const auto percent = [](double share) { return pad_left(fixed(100 * share, 1) + "%", 8); };
  std::string text = "  rank    tp    cp    pp    dp   peak memory  compute (ms)  bubble  exposed communication\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const AxisValues at = topology.dense().coordinates(static_cast<int>(r));
    const auto number = [](int n) { return pad_left(std::to_string(n), 6); };
    text += str(number(static_cast<int>(r)), number(at.tp), number(at.cp), number(at.pp), number(at.dp),
                pad_left(human_bytes(ranks[r].peak_memory_bytes), 14), pad_left(fixed(ranks[r].compute_ms, 1), 14),
                percent(ranks[r].bubble), pad_left(fixed(100 * ranks[r].exposed_communication, 1) + "%", 23), "\n");
  }
  return text;
}

std::string memory_table(const std::vector<RankStats>& ranks) {
  std::vector<std::string> lines{"  rank   peak memory"};
  for (std::size_t r = 0; r < ranks.size(); ++r)
    lines.push_back(pad_left(std::to_string(r), 6) + pad_left(human_bytes(ranks[r].peak_memory_bytes), 14));
  for (const MemoryColumn& column : memory_columns(ranks)) {
    constexpr std::array kLocationNames{"", "in host", "on disk"};
    const bool is_on_device = column.location == MemoryColumn::MemoryLocation::OnDevice;
    const std::string name(is_on_device ? name_of(column.memory_class)
                                        : kLocationNames[static_cast<std::size_t>(column.location)]);
    const std::size_t width = std::max<std::size_t>(name.size(), 10) + 2;
    lines[0] += pad_left(name, width);
    for (std::size_t r = 0; r < ranks.size(); ++r) lines[1 + r] += pad_left(human_bytes(column.bytes[r]), width);
  }
  return join(lines, "\n") + "\n";
}

void ConsoleSink::write_step(const StepRecord& step) {
  if (config_.show_progress) log_.progress(progress_line(step.means));
  if (!step.statistics.layers.empty()) log_.info(layer_table(step.statistics));
}

void ConsoleSink::write_line(const IterationStats& line) {
  log_.info(iteration_line(line, std::chrono::system_clock::now()));
  if (!line.timers.empty()) log_.info(timer_lines(line.timers, config_.timing_log_option));
}

void ConsoleSink::write_ranks(const RankTable& table) {
  if (table.iteration <= 1 || std::exchange(has_logged_table_, true)) return;
  if (table.ranks.size() > 1) log_.info(rank_table(table.ranks, topology_));
  log_.info(memory_table(table.ranks));
}

void ConsoleSink::write_task(const TaskStats& stats) {
  std::vector<std::string> metrics;
  for (const TaskStats::Metric& metric : stats.metrics)
    metrics.push_back(str(metric.name, " ", fixed(metric.value, 4),
                          metric.standard_error ? " +- " + fixed(*metric.standard_error, 4) : ""));
  log_.info(str("task ", stats.task, " at iteration ", stats.iteration, ": ", join(metrics, ", ")));
}

void ConsoleSink::write_sample(const TextSample& sample) {
  log_.info(str("sample at iteration ", sample.iteration, ": ", sample.prompt, sample.text));
}

void ConsoleSink::write_event(const RunEvent& event) {
  if (event.console == RunEvent::Console::Info) log_.info(event.text);
  if (event.console == RunEvent::Console::Warning) log_.warn(event.text);
}

}  // namespace mcpp
