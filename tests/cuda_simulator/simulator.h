// Simulated GPUs: settings, reports, and the queue of operations that the simulated CUDA libraries share.
//
// Every stream is a queue of operations, which one seeded scheduler runs on the threads that wait for them. A vector
// clock per stream orders operations by what streams, events and host threads wait for; every access to device memory
// is compared with earlier accesses by these clocks, so a missing wait is detected in any order that the scheduler
// chooses.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mcpp::cuda_simulator {

/// Order in which queued operations run.
enum class Policy {
  Late,     ///< only operations that are waited for, as late as possible
  Eager,    ///< everything at once
  Reverse,  ///< late, and then the operations of streams with the lowest priority first
  Random,   ///< any operation that can run
  Pct       ///< random priorities of streams that change at a few random points (Burckhardt et al., ASPLOS 2010)
};

/// Settings from the environment: MCPP_SIMULATOR_<NAME>, see docs/cuda.md.
struct Settings {
  Policy policy = Policy::Late;
  std::uint64_t seed = 0;
  int gpus = 8;
  int multiprocessors = 3;
  int compute_capability = 90;                ///< of every GPU, times 10: 90 or 100
  std::size_t memory = std::size_t{4} << 30;  ///< bytes per GPU
  bool late_loading = false;                  ///< the first launch of a kernel waits until the GPU is idle
  bool has_cudnn = true;                      ///< otherwise cuDNN refuses every graph
  bool sums_in_rank_order = false;            ///< NCCL adds in the order of ranks and rounds once
  bool checks_races = true;
  bool aborts_on_report = true;
  std::string fault_call = {};  ///< function whose call number fault_number fails
  int fault_number = 0;         ///< from 1; 0: none
  bool computes = true;         ///< otherwise libraries and large copies only take time
  int blocks = 0;               ///< run per launch of a large grid: half of them the first; 0: all
  int patience = 120;           ///< seconds without progress that count as a deadlock
};
/// Returns the settings; tests of the simulator modify them.
Settings& settings();
/// Restarts the sequence of random numbers from settings().seed.
void reseed();
/// Returns 64 seeded random bits. The caller holds the simulator's lock.
std::uint64_t random_bits();

/// Reports a defect of the program: prints it and aborts, unless a handler or settings() override this.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Replaces the effect of reports; null restores it.
void set_report_handler(std::function<void(const std::string&)> handler);

/// Returns true if this call of a fallible function must fail.
bool should_fail(const char* function);
/// Flips a seeded bit of the range, and prints which.
void flip_bit(void* data, std::size_t bytes);
/// Starts counting the calls of fallible functions.
void reset_faults();
/// Returns the error that a failed kernel has left, which all later calls return; cudaSuccess if there is none.
cudaError_t sticky_error();

/// Lock that is held while the simulated GPUs run operations or change state.
using Mutex = std::recursive_mutex;
using Lock = std::unique_lock<Mutex>;
Mutex& simulator_mutex();

/// Vector clock: for each stream the number of its operations that have happened before. Index 0 is the host.
class VectorClock {
 public:
  std::uint32_t operator[](std::size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  void set(std::size_t stream, std::uint32_t count) {
    if (stream >= counts_.size()) counts_.resize(stream + 1);
    counts_[stream] = count;
  }
  void join(const VectorClock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }

 private:
  std::vector<std::uint32_t> counts_;
};

struct Capture;

struct EventState {
  std::uint64_t recorded = 0, done = 0;  ///< numbers of records that were queued, and that have run
  cudaStream_t stream = nullptr;         ///< stream of the last record
  double seconds = 0;                    ///< virtual time at which the last record ran
  bool has_timing = true;
  VectorClock clock;                    ///< clock of the last record that has run
  std::weak_ptr<Capture> capture = {};  ///< capture of the last record
  std::size_t captured_node = 0;
};

/// Memory of the host that an operation uses.
struct HostRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

struct Operation {
  std::string name;
  std::function<void()> run;
  std::function<bool()> is_ready = nullptr;            ///< nullptr: always
  std::shared_ptr<EventState> waited_event = nullptr;  ///< ready once its record `version` has run
  std::shared_ptr<EventState> recorded_event = nullptr;
  std::uint64_t version = 0;
  HostRange host = {};
  bool may_outlive_stream = false;
  std::shared_ptr<const VectorClock> host_clock = nullptr;
  double queued_at = 0;                 ///< seconds of the host's virtual clock
  std::uint64_t newest_allocation = 0;  ///< newest allocation that it may access as part of a graph; 0: any
};

/// Queues an operation, and lets the policy run some. Records it if the stream captures.
void enqueue(cudaStream_t stream, Operation operation);
/// Returns the number of calls of the host by kind, the first word of Operation::name: "kernel", "cudaMemcpyAsync",
/// "cudaGraphLaunch", ... Tests clear it. Operations of captures and graphs do not count.
std::map<std::string, std::uint64_t>& host_calls();
void count_call(const std::string& name);
/// Returns a clock shared by operations that wait for one another; join_clock() adds it to the current operation.
VectorClock current_clock();
void join_clock(const VectorClock& clock);
/// Wakes the threads that wait for operations of others.
void notify_progress();

/// Runs operations until `is_done`, starting with the operations that `stream` needs. Reports a deadlock if no
/// operation can run and no other thread can queue one.
void wait_until(Lock& lock, cudaStream_t stream, const std::function<bool()>& is_done, const char* call);
/// Returns a description of the next operation of every non-empty stream.
std::string describe_streams();

/// Records an access of the current operation, or of the host outside of operations: finds races and accesses outside
/// of allocations.
void record_access(const void* address, std::size_t bytes, bool is_write);

}  // namespace mcpp::cuda_simulator

/// Stream: the queue of its operations.
struct CUstream_st {
  std::size_t number = 0;  ///< index in vector clocks
  int device = 0;
  int priority = 0;
  std::uint64_t pct_priority = 0;
  std::uint32_t executed = 0;  ///< operations that have run
  bool is_destroyed = false;   ///< deleted once its operations have run
  double seconds = 0;          ///< virtual time
  mcpp::cuda_simulator::VectorClock clock;
  std::shared_ptr<mcpp::cuda_simulator::Capture> capture = nullptr;  ///< capture that records its operations
  std::deque<mcpp::cuda_simulator::Operation> queue;
};
