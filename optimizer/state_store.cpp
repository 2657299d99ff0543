#include "optimizer/state_store.h"

namespace mcpp {
namespace {

class ResidentStates final : public StateStore {
 public:
  ResidentStates(DType dtype, Device& device) : dtype_(dtype), device_(device) {}

  void add(std::size_t states, i64 count) override {
    std::vector<Tensor>& segment = segments_.emplace_back();
    while (segment.size() < states)
      segment.push_back(Tensor::zeros({count}, dtype_, device_, MemoryClass::OptimizerState));
  }
  std::vector<Tensor> fetch(std::size_t segment) override { return segments_[segment]; }
  void drop(std::size_t) override {}
  const std::vector<Tensor>& at_rest(std::size_t segment) const override { return segments_[segment]; }

 private:
  DType dtype_;
  Device& device_;
  std::vector<std::vector<Tensor>> segments_;
};

}  // namespace

std::unique_ptr<StateStore> make_resident_states(DType dtype, Device& device) {
  return std::make_unique<ResidentStates>(dtype, device);
}

}  // namespace mcpp
