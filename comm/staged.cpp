#include "comm/staged.h"

#include <map>
#include <vector>

#include "comm/checks.h"
#include "tensor/cpu/shared_arena.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Reusable tensor in host memory.
struct StagingBuffer {
  Tensor tensor;
  std::shared_ptr<void> pin;
};

/// Pool of staging buffers. Shared by Works, which may outlive the group.
class StagingBuffers {
 public:
  StagingBuffers(PinnedCopies copies, bool is_shared) : copies_(std::move(copies)), host_({.shared = is_shared}) {}

  StagingBuffer take(DType dtype, i64 count) {
    auto& free = free_[dtype];
    const auto it = free.lower_bound(count);
    if (it != free.end() && it->first <= kMaxWasteFactor * count) return std::move(free.extract(it).mapped());
    StagingBuffer buffer{.tensor = Tensor::empty({count}, dtype, host_, MemoryClass::Other), .pin = nullptr};
    // Only arena memory is on separate pages, which can be pinned.
    if (copies_.pin && host_.arena() && host_.arena()->contains(buffer.tensor.raw()))
      buffer.pin = copies_.pin(buffer.tensor.raw(), buffer.tensor.bytes());
    return buffer;
  }
  void release(StagingBuffer buffer) {
    const i64 count = buffer.tensor.numel();
    free_[buffer.tensor.dtype()].emplace(count, std::move(buffer));
  }
  void finish_copies() const {
    if (copies_.finish) copies_.finish();
  }

 private:
  static constexpr i64 kMaxWasteFactor = 4;  // times the required size

  PinnedCopies copies_;
  CpuDevice host_;
  std::map<DType, std::multimap<i64, StagingBuffer>> free_;  // by element count
};

/// Host copy of one tensor during one operation.
class StagedTensor {
 public:
  StagedTensor(std::shared_ptr<StagingBuffers> buffers, const Tensor& t)
      : buffers_(std::move(buffers)), buffer_(buffers_->take(t.dtype(), t.numel())) {
    copy_ = buffer_.tensor.flat(0, t.numel());
  }
  StagedTensor(StagedTensor&&) = default;
  ~StagedTensor() {
    copy_ = {};
    if (buffer_.tensor.defined()) buffers_->release(std::move(buffer_));
  }

  Tensor& copy() { return copy_; }
  Tensor part(int rank, int ranks) const {
    const i64 count = copy_.numel() / ranks;
    return copy_.flat(rank * count, count);
  }
  void write_to(Tensor& t, const Tensor& from) const {
    write_bytes(from.raw(), t);
    buffers_->finish_copies();
  }
  /// Writes the given parts of the copy to the same parts of t.
  void write_parts(const Tensor& t, const std::vector<Part>& parts) const {
    for (const Part& part : parts) {
      Tensor to = t.flat(part.first, part.count);
      if (part.count > 0) write_bytes(copy_.flat(part.first, part.count).raw(), to);
    }
    buffers_->finish_copies();
  }

 private:
  std::shared_ptr<StagingBuffers> buffers_;
  StagingBuffer buffer_;
  Tensor copy_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, Device& device, const PinnedCopies& copies)
      : host_(std::move(host)),
        device_(device),
        copies_(copies),
        buffers_(std::make_shared<StagingBuffers>(copies, host_->size() > 1)) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    if (!is_remote(t)) return host_->all_reduce(t, op);
    if (size() == 1) return {};
    auto staged = read(t);
    return finish(host_->all_reduce(staged->copy(), op),
                  [staged, t]() mutable { staged->write_to(t, staged->copy()); });
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    if (!is_remote(full)) return host_->all_gather(shard, full);
    check_fits(shard, full, *this);
    auto staged = make_staging(full);
    const Tensor local_part = staged->part(rank(), size());
    read_bytes(shard, local_part.raw());
    return finish(host_->all_gather(local_part, staged->copy()),
                  [staged, full]() mutable { staged->write_to(full, staged->copy()); });
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    if (!is_remote(full)) return host_->reduce_scatter(full, shard);
    check_fits(shard, full, *this);
    auto staged = read(full);
    Tensor local_part = staged->part(rank(), size());
    return finish(host_->reduce_scatter(staged->copy(), local_part),
                  [staged, local_part, shard]() mutable { staged->write_to(shard, local_part); });
  }
  Work broadcast(Tensor& t, int root) override {
    if (!is_remote(t)) return host_->broadcast(t, root);
    auto staged = rank() == root ? read(t) : make_staging(t);
    return finish(host_->broadcast(staged->copy(), root), [staged, t, is_root = rank() == root]() mutable {
      if (!is_root) staged->write_to(t, staged->copy());
    });
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    if (!is_remote(in)) return host_->all_to_all(in, out);
    check_same_kind(in, out);
    auto from = read(in), to = make_staging(out);
    return finish(host_->all_to_all(from->copy(), to->copy()),
                  [from, to, out]() mutable { to->write_to(out, to->copy()); });
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    if (!is_remote(in)) return host_->all_to_all_v(in, send, out, receive);
    check_exchange(in, send, out, receive, *this);
    auto from = read(in), to = make_staging(out);
    return finish(
        host_->all_to_all_v(from->copy(), send, to->copy(), receive),
        [from, to, out, parts = std::vector<Part>(receive.begin(), receive.end())] { to->write_parts(out, parts); });
  }

  void connect(const std::vector<int>& peers) override { host_->connect(peers); }
  Work send(const Tensor& t, int destination) override {
    if (!is_remote(t)) return host_->send(t, destination);
    auto staged = read(t);  // the message may be sent from here long after this call
    const auto sent = std::make_shared<Work>(host_->send(staged->copy(), destination));
    if (sent->is_complete()) return {};
    return Work([staged, sent] { sent->wait(); }, [sent] { return sent->is_done(); });
  }
  Work recv(Tensor& t, int source) override {
    if (!is_remote(t)) return host_->recv(t, source);
    auto staged = make_staging(t);
    return finish(host_->recv(staged->copy(), source), [staged, t]() mutable { staged->write_to(t, staged->copy()); });
  }

  void barrier() override {
    buffers_->finish_copies();
    host_->barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<StagedCommunicator>(host_->split(color, key), device_, copies_);
  }
  void abort(int exit_code) noexcept override { host_->abort(exit_code); }

 private:
  bool is_remote(const Tensor& t) const { return &t.device() == &device_; }

  std::shared_ptr<StagedTensor> make_staging(const Tensor& t) const {
    return std::make_shared<StagedTensor>(buffers_, t);
  }
  std::shared_ptr<StagedTensor> read(const Tensor& t) const {
    auto staged = make_staging(t);
    read_bytes(t, staged->copy().raw());
    return staged;
  }
  /// Returns a Work that waits for `work` and then calls `deliver`.
  template <class Deliver>
  static Work finish(Work work, Deliver deliver) {
    const auto running = std::make_shared<Work>(std::move(work));
    return Work([running, deliver = std::move(deliver)]() mutable {
      running->wait();
      deliver();
    });
  }

  std::unique_ptr<Communicator> host_;
  Device& device_;
  PinnedCopies copies_;
  std::shared_ptr<StagingBuffers> buffers_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(std::unique_ptr<Communicator> host, Device& device,
                                                       PinnedCopies copies) {
  return std::make_unique<StagedCommunicator>(std::move(host), device, copies);
}

}  // namespace mcpp
