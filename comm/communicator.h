// Collectives and point-to-point messages over tensors within a group of ranks. Backends: self (one rank), local (ranks
// are threads of one process), mpi and nccl. All backends pass the same conformance tests.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

enum class ReduceOp : u8 { Sum, Max };

/// Element range [first, first + count) of a tensor.
struct Part {
  i64 first = 0, count = 0;
};

/// Handle of an operation in flight. wait() makes the result visible: on a CPU it blocks; on CUDA it makes the compute
/// stream wait, not the host. The Work keeps the tensors alive until then. The destructor waits if wait() was not
/// called, and throws what wait() throws.
class Work {
 public:
  Work() = default;  ///< already complete
  /// `is_done` returns true once the operation has completed, which on a device may be after wait(). It throws if the
  /// operation failed and may be called from any thread.
  explicit Work(std::function<void()> wait, std::function<bool()> is_done = nullptr)
      : wait_(std::move(wait)), is_done_(std::move(is_done)) {}
  Work(Work&& other) noexcept
      : wait_(std::exchange(other.wait_, nullptr)), is_done_(std::exchange(other.is_done_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(wait_, other.wait_);
    std::swap(is_done_, other.is_done_);
    return *this;
  }
  /// Does not wait while an exception unwinds the stack, because the peers may never arrive.
  ~Work() noexcept(false) {
    if (std::uncaught_exceptions() == 0) wait();
  }
  void wait() {
    if (auto f = std::exchange(wait_, nullptr)) f();
  }
  /// Returns true if wait() has been called or is not needed.
  bool is_complete() const { return !wait_; }
  /// Returns true if wait() would return immediately. Returns false if the backend does not report completion before
  /// wait().
  bool is_done() const { return !wait_ || (is_done_ && is_done_()); }
  /// Moves out the is_done callback passed to the constructor; null if there was none.
  std::function<bool()> take_query() { return std::exchange(is_done_, nullptr); }

 private:
  std::function<void()> wait_;
  std::function<bool()> is_done_;
};

/// Group of ranks that communicate.
///
/// All ranks of a group must call the same operations in the same order. Ranks that share several groups must start the
/// operations of all of them in a consistent order. Low-precision sums are accumulated in fp32 in rank order and
/// rounded once, so results are bitwise identical between runs and between CPU backends. The maximum of NaN and any
/// value is NaN. Tensors may be empty. Until wait(), input tensors must not be modified and output tensors must not be
/// read.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Work all_reduce(Tensor& t, ReduceOp op) = 0;
  /// Concatenates the shards of all ranks in rank order into `full`; full.numel() == size() * shard.numel(). `shard`
  /// may be part rank() of `full` itself.
  virtual Work all_gather(const Tensor& shard, Tensor& full) = 0;
  /// Sets `shard` to this rank's part of the sum of all `full`; full.numel() == size() * shard.numel(). `shard` may be
  /// part rank() of `full` itself; the rest of `full` is unchanged.
  virtual Work reduce_scatter(const Tensor& full, Tensor& shard) = 0;
  virtual Work broadcast(Tensor& t, int root) = 0;
  /// Sends part r of `in` to rank r and receives part r of `out` from rank r. All parts have equal size. The tensors
  /// must not overlap.
  virtual Work all_to_all(const Tensor& in, Tensor& out) = 0;
  /// Sends part send[r] of `in` to rank r and receives part receive[r] of `out` from rank r. Both lists have one part
  /// per rank, including this one. Parts may be empty; the size of receive[r] must match what rank r sends to
  /// this rank. Parts of `in` may overlap. Parts of `out` must not, and elements between them are unchanged. The
  /// tensors must not overlap.
  virtual Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out,
                            std::span<const Part> receive) = 0;
  /// Connects this rank to `peers`, the ranks that it sends to or receives from; each peer must list this rank too.
  /// Collective; must be called before the first message. No-op for backends other than NCCL.
  virtual void connect(const std::vector<int>& peers) { static_cast<void>(peers); }
  /// Sends `t` to another rank. Messages between two ranks arrive in order. send() and its Work never block on the
  /// matching receive: wait() returns once the message was delivered or copied, after which `t` may be modified. To
  /// avoid the copy, call wait() late or poll is_done(), and do not modify `t` until then. `destination` must be a
  /// different rank.
  virtual Work send(const Tensor& t, int destination) = 0;
  virtual Work recv(Tensor& t, int source) = 0;
  virtual void barrier() = 0;

  /// Creates a group of the ranks with the same `color`, ordered by key, then by rank. Collective; color >= 0.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Terminates all ranks of the world without waiting for them.
  virtual void abort(int exit_code) noexcept = 0;
};

/// Returns a group of one rank, whose collectives are copies.
std::unique_ptr<Communicator> make_self_communicator();
/// Returns rank 0 of a group of `size` ranks that do not exist, for tensors on the meta device. Operations complete
/// immediately and transfer nothing. They are recorded with the group's name if the device records
/// (MetaDevice::record_to()).
std::unique_ptr<Communicator> make_meta_communicator(i64 size, std::string name = "");

}  // namespace mcpp
