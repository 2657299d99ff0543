#include "megatron_cpp/monitor/trace.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "base/system_error.h"
#include "model/module_memory.h"

namespace mcpp {
namespace {

constexpr int kRounds = 16;  // the fastest is used

/// Pair of values that is sent back and forth.
class ClockMessage {
 public:
  double& operator[](int i) { return tensor_.data<double>()[i]; }
  void send_to(Communicator& world, int rank) { world.send(tensor_, rank).wait(); }
  void receive_from(Communicator& world, int rank) { world.recv(tensor_, rank).wait(); }
  void send_to_all(Communicator& world) { world.broadcast(tensor_, 0).wait(); }

 private:
  CpuDevice host_;
  Tensor tensor_ = Tensor::zeros({2}, DType::F64, host_, MemoryClass::Other);
};

void measure_rank(Communicator& world, int rank, ClockMessage& message) {
  double min_round_trip = std::numeric_limits<double>::infinity(), offset = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double sent_at = steady_seconds();
    message.send_to(world, rank);
    message.receive_from(world, rank);
    const double received_at = steady_seconds();
    if (received_at - sent_at >= min_round_trip) continue;
    min_round_trip = received_at - sent_at;
    offset = (sent_at + received_at) / 2 - message[0];
  }
  message[0] = offset;
  message[1] = min_round_trip / 2;
  message.send_to(world, rank);
}

void reply(Communicator& world, ClockMessage& message) {
  for (int round = 0; round < kRounds; ++round) {
    message.receive_from(world, 0);
    message[0] = steady_seconds();
    message.send_to(world, 0);
  }
  message.receive_from(world, 0);
}

}  // namespace

ClockOffset measure_clock_offset(Communicator& world) {
  ClockMessage message;
  ClockOffset best;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) measure_rank(world, rank, message);
  } else {
    reply(world, message);
    best.uncertainty = message[1];
    // Processes of one host share a clock; offsets this small do not happen by chance between hosts.
    best.seconds = std::abs(message[0]) <= message[1] ? 0 : message[0];
  }
  message[0] = steady_seconds();
  message.send_to_all(world);
  best.reference = message[0];
  best.at = steady_seconds();
  return best;
}

double to_rank0_clock(double moment, const ClockOffset& before, const ClockOffset& after) {
  const double drift = after.seconds - before.seconds, apart = after.at - before.at;
  if (std::abs(drift) <= before.uncertainty + after.uncertainty || apart <= 0)
    return moment + (after.uncertainty < before.uncertainty ? after : before).seconds;
  return moment + before.seconds + drift * (moment - before.at) / apart;
}

namespace {

constexpr std::string_view kCategories[] = {"work", "communication", "message", "bubble"};

double steady_seconds_of(ProfiledRange::Clock::time_point moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}

std::string arguments(const RangeInfo& info) {
  OrderedJson object = OrderedJson::object();
  if (info.iteration >= 0) object["iteration"] = info.iteration;
  if (info.microbatch >= 0) object["microbatch"] = info.microbatch;
  if (info.chunk >= 0) object["chunk"] = info.chunk;
  if (info.bytes >= 0) object["bytes"] = info.bytes;
  if (!info.group.empty()) object["group"] = info.group;
  return object.dump();
}

std::string event_of(const ProfiledRange& range, const RankTrace& trace, int rank) {
  constexpr int kNanoseconds = 3;
  const double begin = to_rank0_clock(steady_seconds_of(range.begin), trace.before, trace.after),
               end = to_rank0_clock(steady_seconds_of(range.end), trace.before, trace.after);
  return str(R"({"name":)", OrderedJson(range.name).dump(), R"(,"cat":")",
             kCategories[static_cast<std::size_t>(range.kind)], R"(","ph":"X","ts":)",
             fixed(1e6 * (begin - trace.before.reference), kNanoseconds), R"(,"dur":)",
             fixed(1e6 * (end - begin), kNanoseconds), R"(,"pid":)", rank, R"(,"tid":)", range.is_on_device ? 1 : 0,
             R"(,"args":)", arguments(range.info), "}");
}

std::string metadata_event(const char* what, int rank, int thread, const OrderedJson& arguments) {
  return OrderedJson{{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", arguments}}.dump();
}

std::string figures_of(const RankTrace& trace, int rank) {
  OrderedJson object{{"rank", rank}, {"name", trace.name}};
  for (const auto& [name, value] : trace.totals) object[name] = value;
  if (!trace.modules.empty()) object["memory_bytes_by_module"] = trace.modules;
  object["ranges_left_out"] = trace.trace.dropped_ranges;
  object["clock_offset_seconds"] = {trace.before.seconds, trace.after.seconds};
  object["clock_uncertainty_seconds"] = {trace.before.uncertainty, trace.after.uncertainty};
  return object.dump();
}

// Sends a text as its length, followed by 32-bit integers.
void send_text(const std::string& text, Communicator& world) {
  CpuDevice host;
  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  *length.data<i64>() = static_cast<i64>(text.size());
  world.send(length, 0).wait();
  Tensor words = Tensor::zeros({static_cast<i64>(text.size()) / 4 + 1}, DType::I32, host, MemoryClass::Other);
  std::memcpy(words.raw(), text.data(), text.size());
  world.send(words, 0).wait();
}

std::string receive_text(int rank, Communicator& world) {
  CpuDevice host;
  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  world.recv(length, rank).wait();
  const i64 size = *length.data<i64>();
  Tensor words = Tensor::empty({size / 4 + 1}, DType::I32, host, MemoryClass::Other);
  world.recv(words, rank).wait();
  return {static_cast<const char*>(words.raw()), static_cast<std::size_t>(size)};
}

/// Writes until the first failure; later text is discarded because the ranks keep sending.
class Writer {
 public:
  explicit Writer(const Path& path) {
    attempt([&] { file_.emplace(path); });
  }
  void write(std::string_view text) {
    attempt([&] { file_->write(text); });
  }
  std::string finish() {
    attempt([&] { file_->commit(); });
    return problem_;
  }

 private:
  template <class F>
  void attempt(F f) {
    if (!problem_.empty()) return;
    try {
      f();
    } catch (const Error& error) {
      problem_ = error.what();
    }
  }
  std::optional<AtomicFile> file_;
  std::string problem_;
};

}  // namespace

std::string trace_events(const RankTrace& trace, int rank) {
  std::string text = metadata_event("process_name", rank, 0, {{"name", trace.name}});
  const auto add = [&](const std::string& event) { text.append(",\n").append(event); };
  add(metadata_event("process_sort_index", rank, 0, {{"sort_index", rank}}));
  add(metadata_event("thread_name", rank, 0, {{"name", "host"}}));
  const auto& ranges = trace.trace.ranges;
  if (!ranges.empty() && ranges.back().is_on_device) add(metadata_event("thread_name", rank, 1, {{"name", "device"}}));
  for (const ProfiledRange& range : ranges) add(event_of(range, trace, rank));
  return text;
}

std::string write_trace_file(const Path& path, const RankTrace& local, const std::string& info, Communicator& world) {
  const std::string events = trace_events(local, world.rank()), totals = figures_of(local, world.rank());
  if (world.rank() != 0) {
    send_text(totals, world);
    send_text(events, world);
    return "";
  }
  Writer file(path);
  file.write("{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n" + events);
  std::string all_figures = totals;
  for (int rank = 1; rank < world.size(); ++rank) {
    all_figures.append(",\n").append(receive_text(rank, world));
    file.write(",\n" + receive_text(rank, world));
  }
  OrderedJson other = OrderedJson::parse(info);
  other["ranks"] = OrderedJson::parse(str("[", all_figures, "]"));
  file.write(str("\n],\n\"otherData\": ", other.dump(), "}\n"));
  return file.finish();
}

namespace {

/// Returns the bytes of parameters, gradients and optimizer state that this rank keeps for each module
/// (model/module_memory.h) between steps. `zero_stage` is the ZeRO stage of the run. Excludes states that are not in
/// tensors, i.e. states on disk or in an encoded form. Call it between steps.
BytesByModule module_memory_usage(const TrainingState& state, i64 zero_stage) {
  BytesByModule modules;
  const auto sum = [&](const Param& param, MemoryClass c) -> double& {
    return modules[module_of(param.name)][std::string(name_of(c))];
  };
  const auto bytes = [](const Tensor& tensor) { return tensor.defined() ? static_cast<double>(tensor.bytes()) : 0; };
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.model->visit([&](Param& param, int) {  // including parameters of which this rank stores nothing
      sum(param, MemoryClass::Params) += zero_stage < 3 ? bytes(param.value) : 0;
      sum(param, MemoryClass::Grads) += zero_stage < 2 ? bytes(param.main_grad) : 0;
      sum(param, MemoryClass::OptimizerState) += 0;
    });
  }
  for (const ParamAndGradBuffer* buffer : state.buffers()) {
    if (zero_stage >= 3)
      buffer->visit_stored_weights([&](Param& param, i64, const StoredArray& values) {
        sum(param, MemoryClass::Params) += static_cast<double>(values.numel() * size_of(values.dtype()));
      });
    if (zero_stage >= 2)
      buffer->visit_grads(
          [&](Param& param, i64, const Tensor& values) { sum(param, MemoryClass::Grads) += bytes(values); });
  }
  bool is_known = true;
  state.optimizer().visit_stored_state([&](std::string_view, Param& param, i64, const auto& values) {
    is_known = is_known && values.tensor().defined();
    sum(param, MemoryClass::OptimizerState) += bytes(values.tensor());
  });
  if (!is_known)
    for (auto& [module, classes] : modules) classes.erase(std::string(name_of(MemoryClass::OptimizerState)));
  return modules;
}

std::string name_of_rank(const ParallelState& parallel) {
  const AxisValues& at = parallel.coordinates;
  return str("rank ", parallel.world.rank(), ": tp ", at.tp, ", cp ", at.cp, ", pp ", at.pp, ", dp ", at.dp, ", ",
             host_name());
}

std::string seven_digits(i64 iteration) {
  const std::string digits = std::to_string(iteration);
  return std::string(digits.size() < 7 ? 7 - digits.size() : 0, '0') + digits;
}

}  // namespace

std::string trace_prefix(i64 first_iteration) {
  return str(kTracePrefix, seven_digits(first_iteration));
}

void StepTrace::begin(const TrainingState& state) {
  local_trace_ = {
      .name = name_of_rank(session_.parallel), .trace = {}, .before = {}, .after = {}, .totals = {}, .modules = {}};
  local_trace_.before = measure_clock_offset(session_.parallel.world);
  clock_ = should_record_ ? make_device_clock(*session_.device) : nullptr;
  begin_ = rank_timings(state, session_.parallel);
  if (should_record_) session_.profiler->start(clock_.get());
}

void StepTrace::end(const TrainingState& state, i64 zero_stage) {
  const RankTimings seconds = rank_timings(state, session_.parallel) - begin_;
  if (should_record_) local_trace_.trace = session_.profiler->stop();
  clock_.reset();
  local_trace_.after = measure_clock_offset(session_.parallel.world);
  local_trace_.totals = {{"clock_seconds", seconds.clock},
                         {"bubble_seconds", seconds.pipeline},
                         {"exposed_communication_seconds", seconds.communication},
                         {"compute_seconds", seconds.compute()}};
  local_trace_.modules = module_memory_usage(state, zero_stage);
  for (const auto& [module, bytes] : local_trace_.trace.saved_bytes)
    local_trace_.modules[module][std::string(name_of(MemoryClass::Activations))] = static_cast<double>(bytes);
}

std::string StepTrace::write(const Path& path, const std::string& info) {
  return write_trace_file(path, std::exchange(local_trace_, {}), info, session_.parallel.world);
}

TraceWindow::TraceWindow(StoredRef<LoggingConfig> config, Path folder, Session& session, StoredRef<Log> log)
    : config_(config), folder_(std::move(folder)), session_(session), log_(log) {
  if (config_.profile_step_end == 0) return;
  const int ranks = session_.parallel.world.size();
  for (const i64 rank : config_.profile_ranks)
    check_input(rank < ranks, "logging.profile_ranks: rank ", rank, " does not exist; the ranks are 0 to ", ranks - 1);
  if (session_.parallel.world.rank() != 0) return;
  std::error_code error;
  check_input(!std::filesystem::exists(folder_, error) || std::filesystem::is_directory(folder_, error),
              "logging.profile_dir: ", folder_.string(), " is a file; set a folder");
  mcpp::create_directories(folder_);
  MCPP_CHECK_SYSTEM(::access(folder_.c_str(), W_OK | X_OK) == 0, "logging.profile_dir: cannot write to ",
                    folder_.string());
}

bool TraceWindow::is_first_iteration(i64 iteration) const {
  return !was_begun_ && iteration > config_.profile_step_start && iteration <= config_.profile_step_end;
}

void TraceWindow::begin(i64 iteration, const TrainingState& state) {
  const std::vector<i64>& ranks = config_.profile_ranks;
  const bool records = ranks.empty() || std::ranges::count(ranks, session_.parallel.world.rank()) > 0;
  was_begun_ = true;
  first_ = iteration;
  trace_.emplace(session_, records).begin(state);
}

void TraceWindow::end(i64 iteration, const TrainingState& state, i64 zero_stage) {
  trace_->end(state, zero_stage);
  is_over_ = true;
  last_ = std::max(first_, iteration);  // the first iteration may have been aborted
}

void TraceWindow::write() {
  if (!trace_ || !is_over_) return;
  const Path path = folder_ / str(trace_prefix(first_), "_", seven_digits(last_), ".json");
  const OrderedJson info{{"first_iteration", first_}, {"last_iteration", last_}};
  const std::string problem = trace_->write(path, info.dump());
  trace_.reset();
  if (problem.empty())
    log_.info(str("the trace of iterations ", first_, " to ", last_, " is in ", path.string()));
  else
    log_.warn(str("the trace of iterations ", first_, " to ", last_, " is lost: ", problem));
}

}  // namespace mcpp
