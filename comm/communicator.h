// Collectives and point-to-point messages over tensors inside one group of ranks. Backends: self (one rank), local
// (ranks are threads of one process), mpi, nccl. All give the same results and pass the same tests.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

enum class ReduceOp : u8 { Sum, Max };

/// Elements [first, first + count) of a tensor.
struct Part {
  i64 first = 0, count = 0;
};

/// A started operation. wait() makes its result visible: on a CPU it blocks, on CUDA the compute stream waits, not the
/// host. It holds the tensors alive until then. Destroying a Work that was not waited for waits, and throws what wait()
/// throws.
class Work {
 public:
  Work() = default;  ///< already done
  /// is_done: on a device, where the operation may go on after wait(), whether it is over; throws when it failed. For
  /// any thread.
  explicit Work(std::function<void()> wait, std::function<bool()> is_done = nullptr)
      : wait_(std::move(wait)), is_done_(std::move(is_done)) {}
  Work(Work&& other) noexcept
      : wait_(std::exchange(other.wait_, nullptr)), is_done_(std::exchange(other.is_done_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(wait_, other.wait_);
    std::swap(is_done_, other.is_done_);
    return *this;
  }
  /// While an error unwinds the stack nobody is waited for: the peers may never come.
  ~Work() noexcept(false) {
    if (std::uncaught_exceptions() == 0) wait();
  }
  void wait() {
    if (auto f = std::exchange(wait_, nullptr)) f();
  }
  /// Nothing is left to wait for.
  bool is_over() const { return !wait_; }
  /// Nothing is left to do: wait() would return at once. False where that cannot be asked before wait().
  bool is_done() const { return !wait_ || (is_done_ && is_done_()); }
  /// The is_done that it was made with, or null.
  std::function<bool()> take_query() { return std::exchange(is_done_, nullptr); }

 private:
  std::function<void()> wait_;
  std::function<bool()> is_done_;
};

/// Every rank of the group calls the same operations in the same order, and ranks of several groups start operations of
/// all of them in an order that agrees. Narrow sums are done in fp32 and rounded once; the order of a sum is by rank,
/// so that results are the same bits every time and in every backend. A maximum of NaN and a number is NaN. Tensors may
/// be empty. Until wait(), tensors that are read must not be changed and tensors that are written must not be read.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Work all_reduce(Tensor& t, ReduceOp op) = 0;
  /// full = the shards of ranks 0, 1, ... one after another; full.numel() == size() * shard.numel(). shard may be
  /// part rank() of full itself.
  virtual Work all_gather(const Tensor& shard, Tensor& full) = 0;
  /// shard = this rank's part of the sum of all `full`; full.numel() == size() * shard.numel(). shard may be part
  /// rank() of full itself; the rest of full is kept.
  virtual Work reduce_scatter(const Tensor& full, Tensor& shard) = 0;
  virtual Work broadcast(Tensor& t, int root) = 0;
  /// Part r of `in` goes to rank r; part r of `out` came from rank r. Equal parts; the tensors do not overlap.
  virtual Work all_to_all(const Tensor& in, Tensor& out) = 0;
  /// Part send[r] of `in` goes to rank r; part receive[r] of `out` is what came from rank r, of as many elements as
  /// that rank has for this one. A part for each rank, this one too; any may be empty. Parts of `in` may overlap, those
  /// of `out` do not, and what lies between them is kept; the tensors do not overlap.
  virtual Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out,
                            std::span<const Part> receive) = 0;
  /// To be called by all ranks of a group before the first message, each with the ranks that it sends to or receives
  /// from, which name it in turn. Only NCCL has something to prepare.
  virtual void connect(const std::vector<int>& peers) { static_cast<void>(peers); }
  /// Messages between two ranks arrive in the order sent. A send never waits for its receive, nor does its Work: after
  /// wait() the tensor may be changed, as the message then has left, for a receive that was there, or is a copy. So who
  /// can leave the tensor as it is should wait late, or until Work::is_done(). A rank does not send to itself.
  virtual Work send(const Tensor& t, int destination) = 0;
  virtual Work recv(Tensor& t, int source) = 0;
  virtual void barrier() = 0;

  /// A group of the ranks with the same color, ordered by key, then by rank. Called by all; color >= 0.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// Ends every rank of the world, without waiting for them.
  virtual void abort(int exit_code) noexcept = 0;
};

/// The group of one rank: every collective is a copy.
std::unique_ptr<Communicator> make_self_communicator();

}  // namespace mcpp
