// Virtual clock: streams, events and host threads advance by the costs of a hardware model, independently of the order
// in which the scheduler runs operations. Without a model there is no clock.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mcpp::cuda_simulator {

/// GEMMs of a batch [m, k] x [k, n] -> [m, n].
struct GemmCost {
  std::int64_t m, n, k, batch;
  std::size_t operand_bytes;  ///< per element
  double output_bytes;        ///< accessed per element of the result, including reads
};

/// Attention's GEMMs, of which a causal mask hides half.
struct AttentionCost {
  double flops;  ///< without the hidden half
  std::int64_t keys;
  std::int64_t heads;  ///< query heads of all samples
  bool is_backward;
};

enum class CollectiveKind { AllReduce, AllGather, ReduceScatter, Broadcast };

/// Model of the hardware. All functions return the duration of an operation in seconds.
class CostModel {
 public:
  virtual ~CostModel() = default;
  /// Returns the duration of a memory-bound kernel. `bytes` is the distinct bytes that it reads plus those that it
  /// writes.
  virtual double kernel(double bytes) const = 0;
  virtual double gemm(const GemmCost& gemm) const = 0;
  virtual double attention(const AttentionCost& attention) const = 0;
  virtual double copy(double bytes, bool is_between_host_and_device) const = 0;
  /// Returns the duration of a collective operation on a vector whose full size is `bytes`.
  virtual double collective(CollectiveKind kind, double bytes, int ranks) const = 0;
  virtual double message(double bytes) const = 0;
  /// Returns the time that the host needs to queue an operation.
  virtual double launch() const = 0;
};

/// Starts the clock at 0; null stops it. The model must outlive its use.
void set_cost_model(const CostModel* model);
const CostModel* cost_model();

/// Returns the time of the stream whose operation runs.
double stream_seconds();
/// Advances the stream whose operation runs by `seconds`.
void spend(double seconds);
void advance_stream_to(double seconds);
/// Returns the calling thread's time.
double host_seconds();
/// Sets the calling thread's time; waits for device work do so.
void advance_host_to(double seconds);

/// Memory that the blocks of a kernel access, in sectors of 32 bytes. A sector that several blocks access is counted
/// once, because caches serve repeated accesses. If only some blocks run, the accesses of a single block are scaled to
/// all blocks, and end_kernel() replaces what they wrote, and all of small allocations, by small finite values: partial
/// results, e.g. of a softmax, could make the loss non-finite, and a step with such a loss does not update the weights.
class KernelTraffic {
 public:
  void begin_kernel(bool runs_all);
  void begin_block();
  void add(const void* address, std::size_t bytes, bool is_write);
  /// Returns the bytes of the kernel.
  double end_kernel(double blocks_per_executed_block);

 private:
  struct Impl;
  static Impl& impl();
};

}  // namespace mcpp::cuda_simulator
