// Storage of tensors that persist between steps: optimizer state, or the weights themselves.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/io/offload_tier.h"
#include "tensor/host/async_copy.h"
#include "tensor/tensor_storage.h"

namespace mcpp {

/// Type and size of a state vector.
struct StateVector {
  DType dtype;
  i64 count;

  i64 bytes() const { return count * size_of(dtype); }
};

/// Store of per-segment states. Segments are numbered 0, 1, ... in the order in which they were added. Only one segment
/// may be in use at a time, between its fetch() and its drop().
class StateStore {
 public:
  virtual ~StateStore() = default;

  /// Returns the maximum segment length in elements; longer segments must be divided. 0 means unlimited.
  virtual i64 longest_segment() const { return 0; }
  /// Allocates the zero-initialized states of a segment.
  virtual void add(const std::vector<StateVector>& states) = 0;
  /// Allocates what must be available before training begins. Called after the last add().
  virtual void reserve() {}

  /// Announces the order in which segments will be fetched, so that they can be prefetched. Fetching in a different
  /// order is correct but slower.
  virtual void prefetch(const std::vector<std::size_t>& /*order*/) {}
  /// Returns the states of a segment on the device that updates it. They may be read and written until drop().
  virtual std::vector<Tensor> fetch(std::size_t segment) = 0;
  virtual void drop(std::size_t segment) = 0;
  /// Like drop(), for a segment that was not modified.
  virtual void release_clean(std::size_t segment) { drop(segment); }
  /// Returns true if every fetch() returns memory of the weights' own device without a transfer.
  virtual bool is_resident() const = 0;
  /// Returns true if fetch() of this segment returns such memory.
  virtual bool is_segment_resident(std::size_t /*segment*/) const { return is_resident(); }

  /// Returns elements [first, first + count) of a vector in its storage, while the segment is not in use. Checkpoints
  /// are saved from and loaded into it, between steps; the next fetch() returns what was loaded.
  virtual std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) = 0;

  /// Returns the offloaded bytes of all segments.
  virtual OffloadedBytes offloaded_bytes() const { return {}; }
  /// Returns a description for the log: "on the disk of /scratch, 1.2 GiB, by io_uring with direct I/O"; empty if
  /// nothing is worth mentioning.
  virtual std::string describe() const { return ""; }
};

/// Creates a store that keeps states in device memory.
std::unique_ptr<StateStore> make_resident_states(Device& device, MemoryClass c = MemoryClass::OptimizerState);

/// Returns a storage view of the tensor's memory.
std::shared_ptr<TensorStorage> make_tensor_storage(Tensor values);

// States in host memory for weights on a device; they are updated on the host.

/// Creates a store with a CPU device of its own, with `threads` threads and separate memory statistics. On hosts
/// without a GPU the weights are on a different CPU device, which takes the same code path. `copies` transfers the
/// stored data, for which memory is pinned; it may be destroyed before the store.
std::unique_ptr<StateStore> make_host_states(int threads, i64 longest_segment,
                                             MemoryClass c = MemoryClass::OptimizerState,
                                             AsyncCopyEngine* copies = nullptr);

// States split between device memory and a slower tier (host memory or disk).

/// Creates a store in which `offloaded` holds about `offloaded_fraction` of the bytes and `resident` the rest. Segments
/// of both alternate, so that one is read while the other is updated.
std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> resident,
                                               std::unique_ptr<StateStore> offloaded, double offloaded_fraction);

}  // namespace mcpp
