#include "nn/offload/tiered_states.h"

#include <utility>

#include "base/number_text.h"

namespace mcpp {
namespace {

class TieredStates final : public StateStore {
 public:
  TieredStates(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far, double far_share)
      : near_(std::move(near)), far_(std::move(far)), far_share_(far_share) {}

  i64 longest_segment() const override { return far_->longest_segment(); }
  void add(const std::vector<StateVector>& states) override {
    double bytes = 0;
    for (const StateVector& state : states) bytes += static_cast<double>(state.bytes());
    bytes_ += bytes;
    const bool is_far = far_bytes_ + bytes / 2 <= far_share_ * bytes_;
    if (is_far) far_bytes_ += bytes;
    std::size_t& next = is_far ? far_segments_ : near_segments_;
    places_.emplace_back(is_far, next++);
    store(is_far).add(states);
  }
  void reserve() override {
    near_->reserve();
    far_->reserve();
  }
  void expect(const std::vector<std::size_t>& order) override {
    std::vector<std::size_t> of_far;
    for (const std::size_t segment : order) {
      if (places_[segment].first) of_far.push_back(places_[segment].second);
    }
    far_->expect(of_far);
  }
  std::vector<Tensor> fetch(std::size_t segment) override {
    return store(places_[segment].first).fetch(places_[segment].second);
  }
  void drop(std::size_t segment) override { store(places_[segment].first).drop(places_[segment].second); }
  bool is_resident() const override { return far_segments_ == 0; }
  bool is_segment_resident(std::size_t segment) const override { return !places_[segment].first; }
  std::shared_ptr<StoredNumbers> at_rest(std::size_t segment, std::size_t vector, i64 first, i64 count) override {
    return store(places_[segment].first).at_rest(places_[segment].second, vector, first, count);
  }
  BytesAway bytes_away() const override { return far_->bytes_away(); }
  std::string describe() const override {
    const double share = bytes_ > 0 ? far_bytes_ / bytes_ : 0;
    return str(fixed(100 * share, 0), "% ", far_->describe());
  }

 private:
  StateStore& store(bool is_far) { return is_far ? *far_ : *near_; }

  std::unique_ptr<StateStore> near_, far_;
  double far_share_, bytes_ = 0, far_bytes_ = 0;
  std::size_t near_segments_ = 0, far_segments_ = 0;
  std::vector<std::pair<bool, std::size_t>> places_;  // by segment: whether it is in far_, and its index there
};

}  // namespace

std::unique_ptr<StateStore> make_tiered_states(std::unique_ptr<StateStore> near, std::unique_ptr<StateStore> far,
                                               double far_share) {
  return std::make_unique<TieredStates>(std::move(near), std::move(far), far_share);
}

}  // namespace mcpp
