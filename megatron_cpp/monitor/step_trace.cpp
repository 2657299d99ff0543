#include "megatron_cpp/monitor/step_trace.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/machine.h"
#include "base/system_error.h"

namespace mcpp {
namespace {

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

void StepTrace::begin(const TimingsFn& get_timings) {
  local_trace_ = {
      .name = name_of_rank(session_.parallel), .trace = {}, .before = {}, .after = {}, .totals = {}, .modules = {}};
  local_trace_.before = measure_clock_offset(session_.parallel.world);
  clock_ = should_record_ ? make_device_clock(*session_.device) : nullptr;
  begin_ = get_timings();
  if (should_record_) session_.profiler->start(clock_.get());
}

void StepTrace::end(const TimingsFn& get_timings, BytesByModule modules) {
  const RankTimings seconds = get_timings() - begin_;
  if (should_record_) local_trace_.trace = session_.profiler->stop();
  clock_.reset();
  local_trace_.after = measure_clock_offset(session_.parallel.world);
  local_trace_.totals = {{"clock_seconds", seconds.clock},
                         {"bubble_seconds", seconds.pipeline},
                         {"exposed_communication_seconds", seconds.communication},
                         {"compute_seconds", seconds.compute()}};
  local_trace_.modules = std::move(modules);
  for (const auto& [module, bytes] : local_trace_.trace.kept)
    local_trace_.modules[module][std::string(name_of(MemoryClass::Activations))] = static_cast<double>(bytes);
}

std::string StepTrace::write(const Path& path, const std::string& facts) {
  return write_trace_file(path, std::exchange(local_trace_, {}), facts, session_.parallel.world);
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

void TraceWindow::begin(i64 iteration, const StepTrace::TimingsFn& get_timings) {
  const std::vector<i64>& ranks = config_.profile_ranks;
  const bool records = ranks.empty() || std::ranges::count(ranks, session_.parallel.world.rank()) > 0;
  was_begun_ = true;
  first_ = iteration;
  trace_.emplace(session_, records).begin(get_timings);
}

void TraceWindow::end(i64 iteration, const StepTrace::TimingsFn& get_timings, BytesByModule modules) {
  trace_->end(get_timings, std::move(modules));
  is_over_ = true;
  last_ = std::max(first_, iteration);  // the first iteration may have been aborted
}

void TraceWindow::write() {
  if (!trace_ || !is_over_) return;
  const Path path = folder_ / str(trace_prefix(first_), "_", seven_digits(last_), ".json");
  const nlohmann::ordered_json facts{{"first_iteration", first_}, {"last_iteration", last_}};
  const std::string problem = trace_->write(path, facts.dump());
  trace_.reset();
  if (problem.empty())
    log_.info(str("the trace of iterations ", first_, " to ", last_, " is in ", path.string()));
  else
    log_.warn(str("the trace of iterations ", first_, " to ", last_, " is lost: ", problem));
}

}  // namespace mcpp
