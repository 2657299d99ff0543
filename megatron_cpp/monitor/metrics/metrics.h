// What a training tells about itself: the line of the log, the live line of a terminal, and metrics.jsonl.
#pragma once
#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "megatron_cpp/logging/append_file.h"
#include "megatron_cpp/monitor/expert_stats.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/monitor/statistics.h"
#include "megatron_cpp/monitor/timers.h"

namespace mcpp {

/// One logged iteration; times and rates are means since the line before.
struct IterationStats {
  i64 iteration = 0;  ///< counted from 1
  i64 train_iters = 0;
  i64 consumed_samples = 0;
  double elapsed_ms = 0;  ///< per iteration
  double learning_rate = 0;
  double weight_decay = 0;
  i64 global_batch_size = 0;
  double lm_loss = 0;
  double loss_scale = 1;
  double grad_norm = 0;
  i64 skipped_iterations = 0;  ///< since the line before
  i64 nan_iterations = 0;
  double tokens_per_second = 0;                ///< of all devices together
  double tflops = 0;                           ///< TFLOP/s of one device
  std::optional<double> mfu;                   ///< share of the device's peak, 0 to 1, where the peak is known
  double eta_seconds = 0;                      ///< to the end of the training
  std::vector<ExpertLayerStats> experts = {};  ///< by layer, of the last iteration
  std::vector<RankStats> ranks = {};           ///< by rank, of a line of the log with several ranks
  std::vector<TimerStats> timers = {};         ///< of a line of the log
  std::optional<double> params_norm = {};      ///< of the last iteration, as the next
  std::optional<double> num_zeros = {};        ///< in its gradient
};

/// Fills tokens_per_second, tflops, mfu and eta_seconds from elapsed_ms and the work of one iteration: its `tokens` and
/// `flops` on `devices` devices, each with `peak_tflops` at best (0 = unknown).
void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices = 1);

/// Megatron-LM's line, field for field, so that tools which read its logs read ours; after it tokens/s, MFU, ETA.
/// A loss that is not a number is shown as nan.
std::string iteration_line(const IterationStats& stats, std::chrono::system_clock::time_point now);

/// A short line for terminals: "iteration 12/100 | loss 4.567 | 12.3K tokens/s | ETA 3m05s".
std::string progress_line(const IterationStats& stats);

struct ValidationStats {
  i64 iteration = 0;
  std::string split;  ///< "validation", "validation-<set>" or "test"
  double lm_loss = 0;
  i64 tokens = 0;

  double perplexity() const;  ///< exp(min(20, loss)), as Megatron-LM
};

/// Megatron-LM's line for an evaluation, between rules of dashes.
std::string validation_lines(const ValidationStats& stats);

/// A run that begins, or goes on, and what it is.
struct RunStart {
  i64 iteration = 0;  ///< after which it goes on; 0 = from the beginning
  i64 train_iters = 0;
  i64 world_size = 1;
  std::string host;     ///< of rank 0
  std::string program;  ///< with its version
  std::string device;
  std::string config;  ///< the whole of it, as print_config() gives it
};

/// What happened beside the steps.
struct RunEvent {
  enum class Kind : u8 { Save, Skip, Spike, RollBack, Stop, End, Failure };
  Kind kind = Kind::Save;
  i64 iteration = 0;
  std::string text;  ///< as the log has it
};

/// What the model makes of logging.sample_prompt.
struct TextSample {
  i64 iteration = 0;
  std::string prompt, text;
};

/// What each rank spends, by rank.
struct RankTable {
  i64 iteration = 0;
  std::vector<RankStats> ranks;
};

/// Appends one JSON object per line to a file (AppendFile). What is not a number becomes null.
///
/// A run resumed at iteration N keeps the file's lines up to N and drops later ones, which are computed again, as well
/// as a last line cut off in a crash: so no iteration is there twice. A run that starts anew (N = 0) does not erase
/// another run's history: an existing file is renamed to <path>.old.
class MetricsWriter {
 public:
  /// An empty path writes nothing. BadInput when the file cannot be opened. The log must outlive the writer.
  MetricsWriter(const Path& path, i64 resumed_iteration, KeptRef<Log> log);

  /// Whether there is a line for such an evaluation at the iteration that the run was resumed at, or a later one.
  bool has_evaluation(const std::string& split, i64 iteration) const {
    return evaluations_.contains({split, iteration});
  }

  void write(const IterationStats& stats);   ///< {"type": "train", "iteration": ..., "time": when it was written, UTC}
  void write(const ValidationStats& stats);  ///< {"type": its split, "iteration": ...}
  void write(const RunStart& start);         ///< {"type": "run", "iteration": ...}
  void write(const RunEvent& event);         ///< {"type": "event", "iteration": ..., "event": "save", ...}
  void write(const TextSample& sample);      ///< {"type": "sample", "iteration": ..., "prompt": ..., "text": ...}
  void write(const RankTable& table);        ///< {"type": "ranks", "iteration": ...}, a list of numbers for each column
  /// {"type": "layer_statistics", "iteration": ..., "layers": a list}
  void write_layers(i64 iteration, const StepStatistics& step);

 private:
  std::set<std::pair<std::string, i64>> evaluations_;  // split and iteration
  AppendFile file_;
};

}  // namespace mcpp
