// Command megatron_cpp bench gemm|ops|step: speed of a model on this host relative to the host's limits.
#include "megatron_cpp/bench/bench_commands.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "base/statistics.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/monitor/trace.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/memory_check.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "megatron_cpp/step/training_state.h"
#include "model/flops.h"
#include "parallel/reduce_scalar.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

struct BenchOptions {
  std::string what;
  std::string config;
  i64 repeats = 5;
  i64 warmup = 2;
  bool json = false;
  std::string trace;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("what", self.what, "gemm: the GEMMs of one step; ops: all other operations; step: complete training steps");
    visit("config", self.config, "configuration file in TOML: the model, precision, batch and threads to time");
    visit("repeats", self.repeats, "timed runs; the median is reported", between(1, 1e6));
    visit("warmup", self.warmup,
          "untimed runs before the timed ones; at least device.cuda_graph_warmup_steps + 2 steps with CUDA graphs",
          between(0, 1e6));
    visit("json", self.json, "print one JSON object instead of a table");
    visit("trace", self.trace, "for step: file for a trace of an additional step after the timed ones");
  }
};

struct BenchContext {
  const Config& config;
  Session& session;
  DType dtype;
  BenchTiming timing;

  i64 tokens() const { return config.training.micro_batch_size * config.model.seq_length; }
  std::vector<GemmCase> gemms() const { return step_gemms(config.model, config.training.micro_batch_size, dtype); }
};

nlohmann::ordered_json header(const BenchContext& context) {
  const Device& device = *context.session.device;
  nlohmann::ordered_json json{{"device", device_name(device)}};
  if (device.type() == DeviceType::Cpu) json["threads"] = static_cast<const CpuDevice&>(device).threads();
  json.update({{"dtype", name_of(context.dtype)},
               {"seq_length", context.config.model.seq_length},
               {"micro_batch_size", context.config.training.micro_batch_size}});
  return json;
}

/// Returns the seconds of one pass over all rows, weighted by their counts.
double total(double BenchRow::*seconds, const std::vector<BenchRow>& rows) {
  double sum = 0;
  for (const BenchRow& row : rows) sum += row.*seconds * static_cast<double>(row.count);
  return sum;
}

std::string gemms_alone(double tokens, double seconds, double cold_seconds) {
  return str("GEMMs alone          ", fixed(seconds * 1e3, 1), " ms, ", fixed(tokens / seconds, 1),
             " tokens/s; of operands as cold as in a step ", fixed(cold_seconds * 1e3, 1), " ms, ",
             fixed(tokens / cold_seconds, 1), " tokens/s");
}

/// Formats rows as a table, with rates as fractions of the given peaks (FLOP/s and bytes/s).
std::string table(const std::vector<BenchRow>& rows, double flops_peak, double bytes_peak) {
  std::string text = str(pad_right("", 28), pad_left("ms", 10), pad_left("times", 7), pad_left("GFLOP/s", 10),
                         pad_left("GB/s", 8), pad_left("of peak", 9), pad_left("cold ms", 10), "\n");
  for (const BenchRow& row : rows) {
    const double share = row.flops > 0 ? row.flops / row.seconds / flops_peak : row.bytes / row.seconds / bytes_peak;
    text += str(pad_right(row.name, 28), pad_left(fixed(row.seconds * 1e3, 3), 10), pad_left(str(row.count), 7),
                pad_left(row.flops > 0 ? fixed(row.flops / row.seconds / 1e9, 1) : "", 10),
                pad_left(row.bytes > 0 ? fixed(row.bytes / row.seconds / 1e9, 1) : "", 8),
                pad_left(fixed(100 * share, 0) + " %", 9),
                pad_left(row.cold_seconds > 0 ? fixed(row.cold_seconds * 1e3, 3) : "", 10), "\n");
  }
  return text;
}

nlohmann::ordered_json as_json(const std::vector<BenchRow>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    list.push_back({{"name", row.name},
                    {"seconds", row.seconds},
                    {"count", row.count},
                    {"flops", row.flops},
                    {"bytes", row.bytes}});
    if (row.cold_seconds > 0) list.back()["cold_seconds"] = row.cold_seconds;
  }
  return list;
}

void bench_rows(const BenchContext& context, const BenchOptions& options, const Log& log) {
  Device& device = *context.session.device;
  const ModelConfig& model = context.config.model;
  const double flops_peak = peak_flops(context.dtype, device), bytes_peak = copy_bandwidth(device);
  const std::vector<BenchRow> rows =
      options.what == "gemm"
          ? bench_gemms(context.gemms(), context.dtype, device, context.timing)
          : bench_ops(model, context.config.training.micro_batch_size, context.dtype, device, context.timing);
  if (options.json) {
    nlohmann::ordered_json json = header(context);
    json.update({{"peak_flops", flops_peak}, {"copy_bandwidth", bytes_peak}, {"rows", as_json(rows)}});
    return log.info(json.dump());
  }
  log.info(str(device_name(device), ", ", name_of(context.dtype), ", ", context.tokens(),
               " tokens; peaks measured: ", fixed(flops_peak / 1e9, 0), " GFLOP/s, copy ", fixed(bytes_peak / 1e9, 1),
               " GB/s\n", table(rows, flops_peak, bytes_peak),
               options.what == "gemm"
                   ? gemms_alone(static_cast<double>(context.tokens()), total(&BenchRow::seconds, rows),
                                 total(&BenchRow::cold_seconds, rows))
                   : std::string()));
}

/// Returns the memory of the process on a CPU. On a GPU, returns the memory of the tensors, without driver and
/// libraries.
double peak_memory_bytes(const Device& device) {
  if (device.type() == DeviceType::Cuda) return static_cast<double>(device.memory().total.peak);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

/// Returns the peak tensor memory of this rank, measured and estimated, in total and for activations, and the measured
/// peak of the rank that needs most. Collective.
nlohmann::ordered_json memory_json(const BenchContext& context, const MemoryTable& measured) {
  Session& session = context.session;
  const double max_tensor_bytes =
      reduce_scalar(static_cast<double>(measured.total.peak), ReduceOp::Max, session.parallel.world, *session.device);
  const Config on_nodes = with_dispatch_nodes(context.config, session.node->size());
  const MemoryEstimate estimated = estimate_memory_by_stage(
      on_nodes, session.parallel.world.size())[static_cast<std::size_t>(session.parallel.coordinates.pp)];
  return {{"tensors_bytes", measured.total.peak},
          {"tensors_bytes_estimated", estimated.total()},
          {"activations_bytes", measured.by_class[static_cast<std::size_t>(MemoryClass::Activations)].peak},
          {"activations_bytes_estimated", estimated.activations},
          {"largest_tensors_bytes", max_tensor_bytes}};
}

struct StepFigures {
  double seconds, tokens, loss, peak_memory;
  nlohmann::ordered_json sent;     ///< bytes sent by this rank in a step, by group and operation
  nlohmann::ordered_json exposed;  ///< median seconds per step that this rank waited, by group
  i64 elements;                    ///< size of this rank's parameter vectors, including padding
};

nlohmann::ordered_json sent_bytes(const ParallelState& parallel) {
  auto sent = nlohmann::ordered_json::object();
  for (const auto& [name, meter] : parallel.meters) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      if (const i64 bytes = meter->by_op[op].bytes; bytes > 0)
        sent[str(name, " ", name_of(static_cast<CommOp>(op)))] = bytes;
    }
  }
  return sent;
}

/// Samples by group.
using Seconds = std::map<std::string, std::vector<double>>;

void record_exposed(const ParallelState& parallel, Seconds& by_step) {
  for (const auto& [name, meter] : parallel.meters) by_step[name].push_back(meter->exposed_seconds);
}

/// Returns the medians over the last `repeats` steps, which are the timed ones.
nlohmann::ordered_json medians(const Seconds& by_step, int repeats) {
  auto result = nlohmann::ordered_json::object();
  for (const auto& [name, seconds] : by_step)
    if (const double middle = median({seconds.end() - repeats, seconds.end()}); middle > 0) result[name] = middle;
  return result;
}

i64 elements(const TrainingState& state) {
  i64 sum = 0;
  for (const ParamAndGradBuffer* buffer : state.buffers()) sum += buffer->plan().total;
  return sum;
}

/// Reports the complete step on several ranks. Collective. The limits of the processor are only measured on a single
/// rank.
void report_step_on_ranks(const BenchContext& context, const BenchOptions& options, const StepFigures& step,
                          const Log& log) {
  const double tflops = flops_per_token(context.config.model) * step.tokens / step.seconds / 1e12;
  if (options.json) {
    nlohmann::ordered_json json = header(context);
    json.update({{"ranks", context.session.parallel.world.size()},
                 {"tokens_per_step", step.tokens},
                 {"step_s", step.seconds},
                 {"tokens_per_s", step.tokens / step.seconds},
                 {"tflops", tflops},
                 {"peak_gib", step.peak_memory / (1 << 30)},
                 {"loss", step.loss},
                 {"elements", step.elements},
                 {"sent_bytes", step.sent},
                 {"exposed_s", step.exposed}});
    json.update(memory_json(context, context.session.device->memory()));
    return log.info(json.dump());
  }
  log.info(str("step on ", context.session.parallel.world.size(), " ranks      ", fixed(step.seconds * 1e3, 1), " ms, ",
               fixed(step.tokens / step.seconds, 1), " tokens/s, ", fixed(tflops, 3), " TFLOP/s\npeak memory          ",
               human_bytes(step.peak_memory), " on rank 0"));
}

void trace_step(const BenchContext& context, const Path& path, TrainingState& state,
                std::span<const MicroBatch> batches) {
  StepTrace trace(context.session, /*records=*/true);
  trace.begin(state);
  state.train_step(batches, context.config.optimizer.lr, context.config.optimizer.weight_decay);
  trace.end(state, context.config.parallel.zero_stage);
  const std::string problem = trace.write(path, "{}");
  check_input(problem.empty(), "--trace=", path.string(), ": ", problem);
}

void check_trace_path(const BenchOptions& options) {
  if (options.trace.empty()) return;
  check_input(options.what == "step", "--trace: applies only to bench step, not to ", options.what);
  const Path path = options.trace, folder = path.has_parent_path() ? path.parent_path() : Path(".");
  check_input(std::filesystem::is_directory(folder), "--trace=", options.trace, ": no such folder: ", folder.string());
  check_input(!std::filesystem::is_directory(path), "--trace=", options.trace, ": is a folder; set a file");
}

/// Returns the timing of steps. With CUDA graphs, the warm-up includes the steps without graphs and the two steps that
/// size and record the graphs.
BenchTiming step_timing(const BenchContext& context) {
  BenchTiming timing = context.timing;
  const DeviceConfig& device = context.config.device;
  if (device.cuda_graph_impl != CudaGraphImpl::None)
    timing.warmup = std::max(timing.warmup, static_cast<int>(device.cuda_graph_warmup_steps) + 2);
  return timing;
}

void bench_step(const BenchContext& context, const BenchOptions& options, const Log& log) {
  const Config& config = context.config;
  StepFigures figures{};
  MemoryTable memory;
  const int ranks = context.session.parallel.world.size();
  const i64 microbatches = microbatches_per_step(config, ranks);
  {
    TrainingState state(model_provider(config, context.session), config.optimizer, context.session.parallel,
                        storage_provider(config, context.session));
    const std::vector<MicroBatch> batches(
        static_cast<std::size_t>(microbatches),
        random_batch(model_provider(config, context.session), config.training.micro_batch_size));
    Seconds exposed;
    figures.seconds = median_seconds(step_timing(context), *context.session.device, [&] {
      for (const auto& [name, meter] : context.session.parallel.meters) meter->reset();
      figures.loss = state.train_step(batches, config.optimizer.lr, config.optimizer.weight_decay).loss;
      record_exposed(context.session.parallel, exposed);
    });
    figures.exposed = medians(exposed, context.timing.repeats);
    figures.sent = sent_bytes(context.session.parallel);
    figures.elements = elements(state);
    memory = context.session.device->memory();  // before other measurements allocate memory
    if (!options.trace.empty()) trace_step(context, options.trace, state, batches);
  }
  figures.peak_memory = peak_memory_bytes(*context.session.device);
  figures.tokens = static_cast<double>(context.tokens() * microbatches * context.session.parallel.layout.dp);
  if (ranks > 1) return report_step_on_ranks(context, options, figures, log);
  const double seconds = figures.seconds, tokens = figures.tokens;
  context.session.device->trim();
  const std::vector<BenchRow> gemms =
      bench_gemms(context.gemms(), context.dtype, *context.session.device, {.warmup = 1, .repeats = 3});
  const double passes = static_cast<double>(microbatches), gemm_seconds = passes * total(&BenchRow::seconds, gemms),
               cold_gemm_seconds = passes * total(&BenchRow::cold_seconds, gemms);
  const double flops = flops_per_token(config.model) * tokens,
               peak = mfu_peak_flops(context.dtype, config.device.allow_tf32, *context.session.device, flops / seconds);
  if (options.json) {
    nlohmann::ordered_json json = header(context);
    json.update({{"tokens_per_step", tokens},
                 {"step_s", seconds},
                 {"tokens_per_s", tokens / seconds},
                 {"tflops", flops / seconds / 1e12},
                 {"mfu", flops / seconds / peak},
                 {"peak_tflops", peak / 1e12},
                 {"gemm_only_tokens_per_s", tokens / gemm_seconds},
                 {"share_of_gemm_only", gemm_seconds / seconds},
                 {"cold_gemm_only_tokens_per_s", tokens / cold_gemm_seconds},
                 {"share_of_cold_gemm_only", cold_gemm_seconds / seconds},
                 {"peak_gib", figures.peak_memory / (1 << 30)},
                 {"loss", figures.loss}});
    json.update(memory_json(context, memory));
    return log.info(json.dump());
  }
  log.info(str("step                 ", fixed(seconds * 1e3, 1), " ms, ", fixed(tokens / seconds, 1), " tokens/s, ",
               fixed(flops / seconds / 1e12, 3), " TFLOP/s (", fixed(100 * flops / seconds / peak, 1),
               " % of a peak of ", fixed(peak / 1e12, 3),
               flops / seconds > peak ? ", which is above the data sheet" : "", ")\n",
               gemms_alone(tokens, gemm_seconds, cold_gemm_seconds), "; the step reaches ",
               fixed(100 * gemm_seconds / seconds, 1), " and ", fixed(100 * cold_gemm_seconds / seconds, 1),
               " % of that\npeak memory          ", human_bytes(figures.peak_memory), "\n", memory.to_string()));
}

}  // namespace

ExitCode bench_command(Arguments args, Log& log, const World& world) {
  if (!args.empty() && args[0] == "attention") return bench_attention_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "comm") return bench_comm_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "checkpoint") return bench_checkpoint_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "groups") return bench_groups_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "object_store") return bench_object_store_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "coordinate_check")
    return bench_coordinate_check_command(args.subspan(1), log, world);
  if (!args.empty() && args[0] == "quality") return bench_quality_command(args.subspan(1), log, world);
  const Usage usage{
      .command = "megatron_cpp bench",
      .summary =
          "Times GEMMs (gemm), the other operations (ops) or complete training steps (step) of a "
          "configuration. Further benchmarks: bench attention, bench comm, bench checkpoint, bench groups, bench "
          "object_store, bench coordinate_check and bench quality.",
      .positional = {"what", "config"},
      .required = {"what", "config"}};
  BenchOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_input(options.what == "gemm" || options.what == "ops" || options.what == "step", "bench: \"", options.what,
              "\": must be one of gemm, ops, step, attention, comm, checkpoint, groups, object_store, "
              "coordinate_check, quality");
  check_trace_path(options);
  resolve_vocabulary(*config, log);
  check_input(world.ranks.size() == 1 || options.what == "step", "bench ", options.what,
              " runs in one process; start it without mpirun");
  check_layout(*config, world.ranks.size());
  if (options.what == "step") check_training_memory(*config, world);
  Session session = initialize(*config, world);
  const BenchContext context{
      *config,
      session,
      dtype_of(config->training.precision),
      {.warmup = static_cast<int>(options.warmup), .repeats = static_cast<int>(options.repeats)}};
  if (options.what == "step")
    bench_step(context, options, log);
  else
    bench_rows(context, options, log);
  log_device_warnings(*session.device, log);
  sync_gemm_algos(config->device, *session.device, world.ranks);
  return ExitCode::Done;
}

}  // namespace mcpp
