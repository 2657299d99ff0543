// Settings from the environment, random numbers, and reports of defects.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

/// Calls that can fail; "kernel" is an error during execution, "nccl" an asynchronous error of a collective, "event" an
/// event that never completes, "upload" a copy of 1 KiB or more to the GPU with a flipped bit, and "memory" a kernel
/// during which a bit of the GPU's memory flips.
constexpr const char* kFaultCalls[]{"cudaMallocAsync",      "cudaMallocHost", "cudaMemcpyAsync", "launch", "kernel",
                                    "cublasLtMatmul",       "nccl",           "event",           "upload", "memory",
                                    "cudaGraphInstantiate", "cudaGraphLaunch"};

/// Returns an environment variable as a number; ends the program if it is none.
long number_setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end == '\0' && value >= 0) return value;
  std::fprintf(stderr, "%s: \"%s\" is not a whole number of at least 0\n", name, text);
  std::exit(2);
}

Policy policy_setting() {
  const char* text = std::getenv("MCPP_SIMULATOR_POLICY");
  const std::string_view name = text ? text : "late";
  if (name == "late" || name.empty()) return Policy::Late;
  if (name == "eager") return Policy::Eager;
  if (name == "reverse") return Policy::Reverse;
  if (name == "random") return Policy::Random;
  if (name == "pct") return Policy::Pct;
  std::fprintf(stderr, "MCPP_SIMULATOR_POLICY: \"%s\"; allowed are late, eager, reverse, random and pct\n", text);
  std::exit(2);
}

/// Reads MCPP_SIMULATOR_FAULT=<function>:<number of the call>.
void read_fault(Settings& s) {
  const char* text = std::getenv("MCPP_SIMULATOR_FAULT");
  if (!text || !*text) return;
  const std::string_view fault = text;
  const std::size_t colon = fault.find(':');
  s.fault_call = fault.substr(0, colon);
  s.fault_number = colon == std::string_view::npos ? 0 : std::atoi(text + colon + 1);
  if (s.fault_number > 0 && std::ranges::find(kFaultCalls, s.fault_call) != std::end(kFaultCalls)) return;
  std::fprintf(stderr, "MCPP_SIMULATOR_FAULT: \"%s\"; expected is <call>:<number from 1> with one of the calls", text);
  for (const char* name : kFaultCalls) std::fprintf(stderr, " %s", name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

Settings settings_from_environment() {
  Settings s;
  s.policy = policy_setting();
  s.seed = static_cast<std::uint64_t>(number_setting("MCPP_SIMULATOR_SEED", 0));
  s.gpus = static_cast<int>(number_setting("MCPP_SIMULATOR_GPUS", s.gpus));
  s.multiprocessors = static_cast<int>(number_setting("MCPP_SIMULATOR_MULTIPROCESSORS", s.multiprocessors));
  s.compute_capability = static_cast<int>(number_setting("MCPP_SIMULATOR_COMPUTE_CAPABILITY", s.compute_capability));
  s.memory = static_cast<std::size_t>(number_setting("MCPP_SIMULATOR_MEMORY_MIB", 4096)) << 20;
  s.late_loading = number_setting("MCPP_SIMULATOR_LATE_LOADING", 0) != 0;
  s.has_cudnn = number_setting("MCPP_SIMULATOR_CUDNN", 1) != 0;
  s.sums_in_rank_order = number_setting("MCPP_SIMULATOR_RANK_ORDER", 0) != 0;
  s.checks_races = number_setting("MCPP_SIMULATOR_RACES", 1) != 0;
  s.aborts_on_report = number_setting("MCPP_SIMULATOR_ABORT", 1) != 0;
  read_fault(s);
  s.blocks = static_cast<int>(number_setting("MCPP_SIMULATOR_BLOCKS", 0));
  s.patience = static_cast<int>(number_setting("MCPP_SIMULATOR_PATIENCE", s.patience));
  return s;
}

std::function<void(const std::string&)> report_handler;
std::uint64_t random_state = 0;
bool is_seeded = false;

}  // namespace

Settings& settings() {
  static Settings loaded = settings_from_environment();
  return loaded;
}

void reseed() {
  random_state = settings().seed * 0x9E3779B97F4A7C15u + 1;
  is_seeded = true;
}

std::uint64_t random_bits() {  // SplitMix64
  if (!is_seeded) reseed();
  std::uint64_t z = random_state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void report(const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (report_handler) return report_handler(text);
  static const char* const kPolicies[] = {"late", "eager", "reverse", "random", "pct"};
  std::fprintf(stderr, "CUDA simulator: %s\n  replay: MCPP_SIMULATOR_POLICY=%s MCPP_SIMULATOR_SEED=%llu\n", text,
               kPolicies[static_cast<int>(settings().policy)], static_cast<unsigned long long>(settings().seed));
  std::fflush(stderr);
  if (settings().aborts_on_report) std::abort();
}

void set_report_handler(std::function<void(const std::string&)> handler) {
  report_handler = std::move(handler);
}

Mutex& simulator_mutex() {
  static Mutex* const mutex = new Mutex;  // never destroyed: threads may outlive static objects
  return *mutex;
}

}  // namespace mcpp::cuda_simulator
