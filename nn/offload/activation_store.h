// Where activations wait between forward and backward, when not in the memory of their device.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/io/offload_tier.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Tensors that were put away together. Whoever drops this gives them up; not after their store.
class TensorsAway {
 public:
  virtual ~TensorsAway() = default;
  /// They are wanted soon: begins to bring them. May be called again.
  virtual void expect() = 0;
  /// The tensors in new memory of their device, in their order. Once. PeerLost, with which a launcher starts the run
  /// again from its last checkpoint, when they are not what was put away.
  virtual std::vector<Tensor> take() = 0;
};

/// For one thread. What was put away last is wanted first, of each microbatch.
class ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Copies the tensors, whose memory may then be changed or go. PeerLost when something put away before was lost, or
  /// a disk has no room any more.
  virtual std::unique_ptr<TensorsAway> put(std::vector<Tensor> tensors) = 0;
  /// For the log: "on the disk of /scratch, 1.2 GiB, by io_uring past the page cache".
  virtual std::string describe() const = 0;
  /// The most so far.
  virtual BytesAway peak() const = 0;
};

struct ActivationOffload {
  OffloadTier tier = OffloadTier::Device;
  Path folder = {};      ///< for files
  std::string key = {};  ///< of the configuration, which named the folder
  i64 bytes = 0;         ///< room that is taken on the disk before the training begins; more when that does not do
};

/// For activations on `device`, which outlives it; null when they stay there. BadInput for a folder where files cannot
/// be, or have not the room.
std::unique_ptr<ActivationStore> make_activation_store(const ActivationOffload& offload, Device& device);

}  // namespace mcpp
