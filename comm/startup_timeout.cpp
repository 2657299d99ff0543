#include "comm/startup_timeout.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "comm/watchdog/background_thread.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr const char* kVariable = "MEGATRON_CPP_START_TIMEOUT_MINUTES";
constexpr double kDefaultMinutes = 10;  // same as parallel.distributed_timeout_minutes

}  // namespace

double read_startup_timeout(const std::function<const char*(const char*)>& variable) {
  const char* text = variable(kVariable);
  if (!text || !*text) return 60 * kDefaultMinutes;
  const double minutes = parse_number<double>(text).value_or(0);
  check_input(minutes > 0 && std::isfinite(minutes), kVariable, "=", text,
              ": must be a positive number: the minutes that ranks may wait for each other before MPI is initialized");
  return 60 * minutes;
}

std::string read_rank(const std::function<const char*(const char*)>& variable) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK"}) {
    const char* text = variable(name);
    if (text && *text) return text;
  }
  return "";
}

StartupTimeout::StartupTimeout(double seconds, Launcher launcher, std::string rank)
    : limit_(seconds), launcher_(std::move(launcher)), rank_(std::move(rank)) {
  thread_ = start_background_thread([this] { watch(); });
}

StartupTimeout::~StartupTimeout() {
  {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StartupTimeout::watch() {
  const Seconds pause(std::clamp(limit_ / 20, 0.02, 1.0));
  Seconds waited{0};
  std::unique_lock lock(mutex_);
  for (Clock::time_point last = Clock::now(); waited.count() <= limit_;) {
    if (changed_.wait_for(lock, pause, [this] { return is_finished_; })) return;
    const Clock::time_point now = Clock::now();
    waited += std::min(Seconds(now - last), 3 * pause);  // time during which the process was suspended does not count
    last = now;
  }
  exit_process();
}

void StartupTimeout::exit_process() const {
  write_error(str(rank_.empty() ? "" : str("[rank ", rank_, "] "), "megatron_cpp: error: ", phase_.load(),
                  " has waited ", human_seconds(limit_), " for the other ranks (", launcher_.variable, "=",
                  launcher_.ranks,
                  "): one has not started, was stopped, has ended, runs as a different user or runs on ",
                  "a host that cannot be reached; inspect the ranks that do not print this message. ", kVariable,
                  " limits how long ranks may wait\n"));
  ::_exit(static_cast<int>(ExitCode::PeerLost));
}

}  // namespace mcpp
