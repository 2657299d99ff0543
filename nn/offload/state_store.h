// Storage of tensors that persist between steps: optimizer state, or the weights themselves.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/io/offload_tier.h"
#include "base/io/transfer_queue.h"
#include "nn/offload/stored_array.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

class FileStates;

struct StateStoreOptions {
  MemoryClass memory_class = MemoryClass::OptimizerState;
  OffloadTier tier = OffloadTier::Device;
  double offloaded_fraction = 1;  ///< approximate fraction of the bytes in the tier; the rest is on the device
  i64 longest_segment = 0;        ///< max elements of an offloaded segment; 0 = unlimited
  /// CPU device in whose memory offloaded segments are used. By default the store creates a device with `host_threads`
  /// threads and separate memory statistics. With OffloadTier::File, this is only necessary if the weights are not on a
  /// CPU device. On hosts without a GPU, the weights and states in host memory take the code path of a GPU.
  std::shared_ptr<CpuDevice> host = nullptr;
  int host_threads = 1;
  /// Copy engine that transfers the stored data; memory is pinned for it. May be destroyed before the store.
  AsyncCopyEngine* copies = nullptr;
  Path folder = {};                            ///< for OffloadTier::File
  std::string key = {};                        ///< configuration key that named the folder
  bool supports_snapshots = false;             ///< allows asynchronous saves of data on disk
  std::string what = "the optimizer's state";  ///< name of the content in messages
};

/// Store of segments of several vectors each, numbered 0, 1, ... in the order in which they were added, on the device
/// of the weights, in host memory or on disk. If only a fraction is offloaded, segments on the device alternate with
/// offloaded segments, so that one is read while another is updated. Only one segment may be in use at a time, from
/// fetch() to drop().
class StateStore {
 public:
  /// `device` is the device of the weights. `queue` transfers data to and from a disk; nullptr means
  /// make_transfer_queue().
  explicit StateStore(Device& device, StateStoreOptions options = {}, std::unique_ptr<TransferQueue> queue = nullptr);
  ~StateStore();

  /// Returns the maximum segment length in elements; longer segments must be divided. 0 means unlimited.
  i64 longest_segment() const { return options_.tier == OffloadTier::Device ? 0 : options_.longest_segment; }
  /// Allocates the zero-initialized vectors of a segment.
  void add(const std::vector<VectorSpec>& vectors);
  /// Allocates the memory and disk space that training requires. Call after the last add().
  void reserve();

  /// Announces the order in which segments will be fetched, so that they can be prefetched. Fetching in a different
  /// order is correct but slower.
  void prefetch(const std::vector<std::size_t>& order);
  /// Returns the vectors of a segment in the memory in which it is updated. They may be read and written until drop().
  std::vector<Tensor> fetch(std::size_t segment);
  void drop(std::size_t segment);
  /// Ends the use of a segment like drop(), for a segment that was not modified.
  void release_clean(std::size_t segment);
  /// Returns true if every fetch() returns memory of the weights' own device without a transfer.
  bool is_resident() const { return offloaded_bytes_ == 0; }
  bool is_resident(std::size_t segment) const { return !segments_[segment].is_offloaded; }

  /// Returns a vector in its storage, while the segment is not in use. Between steps, checkpoints are saved from this
  /// array and loaded into it; the next fetch() returns the loaded values.
  StoredArray stored(std::size_t segment, std::size_t vector) const;

  /// Returns the offloaded bytes of all segments.
  OffloadedBytes offloaded_bytes() const;
  /// Describes the offloaded part for the log: "40% on the disk of /scratch, 1.2 GiB, by io_uring with direct I/O";
  /// empty if nothing is offloaded.
  std::string describe() const;

 private:
  struct Segment {
    bool is_offloaded;
    std::vector<PinnedTensor> vectors;  // empty if on disk
    std::size_t on_disk;                // index of the segment in disk_
  };
  PinnedTensor allocate(const VectorSpec& vector, bool is_offloaded);

  Device& device_;
  StateStoreOptions options_;
  double bytes_ = 0, offloaded_bytes_ = 0;
  std::unique_ptr<FileStates> disk_;  // null unless the tier is OffloadTier::File
  std::size_t num_on_disk_ = 0;
  std::vector<Segment> segments_;  // declared after options_.host, whose memory the segments use
};

}  // namespace mcpp
