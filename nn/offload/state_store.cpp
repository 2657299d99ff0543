#include "nn/offload/state_store.h"

#include <utility>

#include "base/number_format.h"
#include "tensor/host/pinned_buffer_pool.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

class InMemory final : public TensorStorage {
 public:
  explicit InMemory(Tensor values) : values_(std::move(values)) {}

  DType dtype() const override { return values_.dtype(); }
  i64 numel() const override { return values_.numel(); }
  Tensor tensor() const override { return values_; }
  void read(Tensor& to) const override { read_bytes(values_, to.raw()); }
  void write(const Tensor& from) override { write_bytes(from.raw(), values_); }
  std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const override {
    return std::make_shared<InMemory>(values_.flat(begin, count));
  }
  std::shared_ptr<const TensorStorage> snapshot() const override;

 private:
  Tensor values_;
};

/// Copy in host memory of its own. Parts are views of it.
class HostCopy final : public TensorStorage {
 public:
  explicit HostCopy(const Tensor& values) : HostCopy(std::make_shared<CpuDevice>(), values) {
    read_bytes(values, values_.raw());
  }

  DType dtype() const override { return storage_.dtype(); }
  i64 numel() const override { return storage_.numel(); }
  void read(Tensor& to) const override { storage_.read(to); }
  void write(const Tensor& from) override { storage_.write(from); }
  std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const override {
    return std::shared_ptr<HostCopy>(new HostCopy(values_.flat(begin, count), host_));
  }
  std::shared_ptr<const TensorStorage> snapshot() const override { return std::make_shared<HostCopy>(values_); }

 private:
  HostCopy(std::shared_ptr<CpuDevice> host, const Tensor& like)
      : HostCopy(Tensor::empty({like.numel()}, like.dtype(), *host, MemoryClass::Other), host) {}
  HostCopy(Tensor values, std::shared_ptr<CpuDevice> host)
      : host_(std::move(host)), values_(std::move(values)), storage_(values_) {}

  std::shared_ptr<CpuDevice> host_;  // first member: the members below use its memory
  Tensor values_;
  InMemory storage_;
};

std::shared_ptr<const TensorStorage> InMemory::snapshot() const {
  return std::make_shared<HostCopy>(values_);
}

/// In-memory states of segments.
class SegmentBuffers {
 public:
  /// Adds a segment. allocate(state) returns a zero-filled PinnedTensor.
  template <class F>
  void add(const std::vector<StateVector>& states, F&& allocate) {
    std::vector<PinnedTensor>& segment = segments_.emplace_back();
    for (const StateVector& state : states) segment.push_back(allocate(state));
  }
  std::vector<Tensor> vectors_of(std::size_t segment) const {
    std::vector<Tensor> vectors;
    for (const PinnedTensor& vector : segments_[segment]) vectors.push_back(vector.tensor);
    return vectors;
  }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) const {
    return make_tensor_storage(segments_[segment][vector].tensor.flat(first, count));
  }

 private:
  std::vector<std::vector<PinnedTensor>> segments_;
};

/// States on the device of the weights.
class ResidentStates final : public StateStore {
 public:
  ResidentStates(Device& device, MemoryClass c) : device_(device), class_(c) {}

  void add(const std::vector<StateVector>& states) override {
    buffers_.add(states, [&](const StateVector& state) -> PinnedTensor {
      return {.tensor = Tensor::zeros({state.count}, state.dtype, device_, class_)};
    });
  }
  std::vector<Tensor> fetch(std::size_t segment) override { return buffers_.vectors_of(segment); }
  void drop(std::size_t) override {}
  bool is_resident() const override { return true; }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) override {
    return buffers_.stored_view(segment, vector, first, count);
  }

 private:
  Device& device_;
  MemoryClass class_;
  SegmentBuffers buffers_;
};

class HostStates final : public StateStore {
 public:
  HostStates(int threads, i64 longest_segment, MemoryClass c, AsyncCopyEngine* copies)
      : host_({.threads = threads}), class_(c), longest_segment_(longest_segment), copies_(copies) {}

  i64 longest_segment() const override { return longest_segment_; }
  void add(const std::vector<StateVector>& states) override {
    buffers_.add(states, [&](const StateVector& state) {
      PinnedTensor buffer;
      if (copies_)
        buffer = pinned_tensor({state.count}, state.dtype, host_, class_, *copies_);
      else
        buffer.tensor = Tensor::empty({state.count}, state.dtype, host_, class_);
      ops::fill_zero(buffer.tensor);
      return buffer;
    });
  }
  std::vector<Tensor> fetch(std::size_t segment) override { return buffers_.vectors_of(segment); }
  void drop(std::size_t) override {}
  bool is_resident() const override { return false; }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) override {
    return buffers_.stored_view(segment, vector, first, count);
  }
  OffloadedBytes offloaded_bytes() const override { return {.in_host = host_.memory().total.bytes}; }
  std::string describe() const override {
    return str("in host memory, ", human_bytes(static_cast<double>(host_.memory().total.bytes)));
  }

 private:
  CpuDevice host_;
  MemoryClass class_;
  i64 longest_segment_;
  AsyncCopyEngine* copies_;  // used by add() only
  SegmentBuffers buffers_;   // last: it uses the host's memory
};

}  // namespace

std::shared_ptr<TensorStorage> make_tensor_storage(Tensor values) {
  return std::make_shared<InMemory>(std::move(values));
}

std::unique_ptr<StateStore> make_resident_states(Device& device, MemoryClass c) {
  return std::make_unique<ResidentStates>(device, c);
}

std::unique_ptr<StateStore> make_host_states(int threads, i64 longest_segment, MemoryClass c, AsyncCopyEngine* copies) {
  return std::make_unique<HostStates>(threads, longest_segment, c, copies);
}

namespace {

class TieredStates final : public StateStore {
 public:
  TieredStates(std::unique_ptr<StateStore> resident, std::unique_ptr<StateStore> offloaded, double offloaded_fraction)
      : resident_(std::move(resident)), offloaded_(std::move(offloaded)), offloaded_fraction_(offloaded_fraction) {}

  i64 longest_segment() const override { return offloaded_->longest_segment(); }
  void add(const std::vector<StateVector>& states) override {
    double bytes = 0;
    for (const StateVector& state : states) bytes += static_cast<double>(state.bytes());
    bytes_ += bytes;
    const bool is_offloaded = offloaded_size_ + bytes / 2 <= offloaded_fraction_ * bytes_;
    if (is_offloaded) offloaded_size_ += bytes;
    std::size_t& next = is_offloaded ? num_offloaded_ : num_resident_;
    locations_.emplace_back(is_offloaded, next++);
    store(is_offloaded).add(states);
  }
  void reserve() override {
    resident_->reserve();
    offloaded_->reserve();
  }
  void prefetch(const std::vector<std::size_t>& order) override {
    std::vector<std::size_t> offloaded_segments;
    for (const std::size_t segment : order) {
      if (locations_[segment].first) offloaded_segments.push_back(locations_[segment].second);
    }
    offloaded_->prefetch(offloaded_segments);
  }
  std::vector<Tensor> fetch(std::size_t segment) override {
    return store(locations_[segment].first).fetch(locations_[segment].second);
  }
  void drop(std::size_t segment) override { store(locations_[segment].first).drop(locations_[segment].second); }
  bool is_resident() const override { return num_offloaded_ == 0; }
  bool is_segment_resident(std::size_t segment) const override { return !locations_[segment].first; }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) override {
    return store(locations_[segment].first).stored_view(locations_[segment].second, vector, first, count);
  }
  OffloadedBytes offloaded_bytes() const override { return offloaded_->offloaded_bytes(); }
  std::string describe() const override {
    const double share = bytes_ > 0 ? offloaded_size_ / bytes_ : 0;
    return str(fixed(100 * share, 0), "% ", offloaded_->describe());
  }

 private:
  StateStore& store(bool is_offloaded) { return is_offloaded ? *offloaded_ : *resident_; }

  std::unique_ptr<StateStore> resident_, offloaded_;
  double offloaded_fraction_, bytes_ = 0, offloaded_size_ = 0;
  std::size_t num_resident_ = 0, num_offloaded_ = 0;
  // True for each segment that is offloaded, and the index of the segment in its store.
  std::vector<std::pair<bool, std::size_t>> locations_;
};

}  // namespace

std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> resident,
                                               std::unique_ptr<StateStore> offloaded, double offloaded_fraction) {
  return std::make_unique<TieredStates>(std::move(resident), std::move(offloaded), offloaded_fraction);
}

}  // namespace mcpp
