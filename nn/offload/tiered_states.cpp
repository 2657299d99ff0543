#include "nn/offload/tiered_states.h"

#include <utility>

#include "base/number_format.h"

namespace mcpp {
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
