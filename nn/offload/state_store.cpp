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

/// Copy in host memory that it owns; its parts are views of it.
class Copy final : public TensorStorage {
 public:
  explicit Copy(const Tensor& values) : Copy(std::make_shared<CpuDevice>(), values) {
    read_bytes(values, values_.raw());
  }

  DType dtype() const override { return numbers_.dtype(); }
  i64 numel() const override { return numbers_.numel(); }
  void read(Tensor& to) const override { numbers_.read(to); }
  void write(const Tensor& from) override { numbers_.write(from); }
  std::shared_ptr<TensorStorage> part(i64 begin, i64 count) const override {
    return std::shared_ptr<Copy>(new Copy(values_.flat(begin, count), host_));
  }
  std::shared_ptr<const TensorStorage> snapshot() const override { return std::make_shared<Copy>(values_); }

 private:
  Copy(std::shared_ptr<CpuDevice> host, const Tensor& like)
      : Copy(Tensor::empty({like.numel()}, like.dtype(), *host, MemoryClass::Other), host) {}
  Copy(Tensor values, std::shared_ptr<CpuDevice> host)
      : host_(std::move(host)), values_(std::move(values)), numbers_(values_) {}

  std::shared_ptr<CpuDevice> host_;  // first: the members below use its memory
  Tensor values_;
  InMemory numbers_;
};

std::shared_ptr<const TensorStorage> InMemory::snapshot() const {
  return std::make_shared<Copy>(values_);
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
  std::vector<Tensor> of(std::size_t segment) const {
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
  std::vector<Tensor> fetch(std::size_t segment) override { return buffers_.of(segment); }
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
      PinnedTensor room;
      if (copies_)
        room = pinned_tensor({state.count}, state.dtype, host_, class_, *copies_);
      else
        room.tensor = Tensor::empty({state.count}, state.dtype, host_, class_);
      ops::fill_zero(room.tensor);
      return room;
    });
  }
  std::vector<Tensor> fetch(std::size_t segment) override { return buffers_.of(segment); }
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
  TieredStates(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far, double far_fraction)
      : near_(std::move(near)), far_(std::move(far)), far_fraction_(far_fraction) {}

  i64 longest_segment() const override { return far_->longest_segment(); }
  void add(const std::vector<StateVector>& states) override {
    double bytes = 0;
    for (const StateVector& state : states) bytes += static_cast<double>(state.bytes());
    bytes_ += bytes;
    const bool is_far = far_bytes_ + bytes / 2 <= far_fraction_ * bytes_;
    if (is_far) far_bytes_ += bytes;
    std::size_t& next = is_far ? far_segments_ : near_segments_;
    places_.emplace_back(is_far, next++);
    store(is_far).add(states);
  }
  void reserve() override {
    near_->reserve();
    far_->reserve();
  }
  void prefetch(const std::vector<std::size_t>& order) override {
    std::vector<std::size_t> far_segments;
    for (const std::size_t segment : order) {
      if (places_[segment].first) far_segments.push_back(places_[segment].second);
    }
    far_->prefetch(far_segments);
  }
  std::vector<Tensor> fetch(std::size_t segment) override {
    return store(places_[segment].first).fetch(places_[segment].second);
  }
  void drop(std::size_t segment) override { store(places_[segment].first).drop(places_[segment].second); }
  bool is_resident() const override { return far_segments_ == 0; }
  bool is_segment_resident(std::size_t segment) const override { return !places_[segment].first; }
  std::shared_ptr<TensorStorage> stored_view(std::size_t segment, std::size_t vector, i64 first, i64 count) override {
    return store(places_[segment].first).stored_view(places_[segment].second, vector, first, count);
  }
  OffloadedBytes offloaded_bytes() const override { return far_->offloaded_bytes(); }
  std::string describe() const override {
    const double share = bytes_ > 0 ? far_bytes_ / bytes_ : 0;
    return str(fixed(100 * share, 0), "% ", far_->describe());
  }

 private:
  StateStore& store(bool is_far) { return is_far ? *far_ : *near_; }

  std::unique_ptr<StateStore> near_, far_;
  double far_fraction_, bytes_ = 0, far_bytes_ = 0;
  std::size_t near_segments_ = 0, far_segments_ = 0;
  std::vector<std::pair<bool, std::size_t>> places_;  // by segment: whether it is in far_, and its index there
};

}  // namespace

std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far,
                                               double far_fraction) {
  return std::make_unique<TieredStates>(std::move(near), std::move(far), far_fraction);
}

}  // namespace mcpp
