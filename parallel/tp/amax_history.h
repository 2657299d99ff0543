// Delayed scaling (NVIDIA, Transformer Engine, recipe DelayedScaling): the scale of a tensor in fp8 is derived from its
// largest magnitudes (amax) in past steps, so a GEMM does not wait for ranks that hold other shards. The amax of a step
// is the maximum over all microbatches and ranks, and thus does not depend on the layout.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/tp/delayed_scaling.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Tensor of a linear layer that has a history.
enum class ScaledTensor : u8 { Input, Weight, Gradient };
inline constexpr i64 kScaledTensors = 3;

/// Magnitudes of the tensors of one linear layer: those of the current step, which it records, and those that its
/// scales are derived from.
class AmaxHistory {
 public:
  /// Returns true if the amax that the scale follows from is above 0. Identical on all ranks with the layer; constant
  /// within a step.
  bool has_scale(ScaledTensor tensor) const { return has_scale_[index(tensor)]; }
  /// Returns the magnitude that the scale is derived from, fp32 [1]; larger values saturate. has_scale() must be true.
  Tensor scaling_amax(ScaledTensor tensor) const;
  /// Records the amax of a tensor, or of a part of it, in this step.
  void record(ScaledTensor tensor, const Tensor& part);
  /// Records the amax of a weight. Further calls within a step do nothing, because the weight does not change.
  void record_weight(const std::vector<Tensor>& parts);

 private:
  friend class AmaxHistories;
  static constexpr std::size_t index(ScaledTensor tensor) { return static_cast<std::size_t>(tensor); }

  Tensor current_, scaling_;  // fp32 [kScaledTensors]
  std::array<bool, kScaledTensors> has_scale_ = {};
  bool has_weight_ = false;
};

/// Histories of the linear layers in this rank's pipeline stage.
class AmaxHistories {
 public:
  explicit AmaxHistories(const DelayedScaling& settings) : settings_(settings) {}
  AmaxHistories(const AmaxHistories&) = delete;
  AmaxHistories& operator=(const AmaxHistories&) = delete;

  /// Returns the history of a linear layer, which has no values before allocate(). Callers with the same name share it.
  /// The reference stays valid.
  AmaxHistory& add(const std::string& module) { return histories_[module]; }
  /// Allocates the histories of the layers that were added, without values.
  void allocate(Device& device);

  /// Discards the records of the current step.
  void begin_step();
  /// Appends the maxima of the records of all ranks to the histories, and drops the oldest values. Stores a maximum
  /// that is not finite as 0 (no value). Call update_scales() afterwards. Collective over `groups`, which together
  /// connect the ranks with these layers.
  void end_step(std::span<Communicator* const> groups);
  /// Derives the scales from the histories. Call it after they changed, here or through visit().
  void update_scales();

  /// Calls f(module, values) for each layer. `values` is fp32 [kScaledTensors, amax_history_len], newest value first;
  /// 0: no value.
  void visit(const std::function<void(const std::string&, const Tensor&)>& f) const;

 private:
  float scaling_amax(std::span<const float> values) const;

  DelayedScaling settings_;
  std::map<std::string, AmaxHistory> histories_;
  Tensor current_, scaling_;  // fp32 [layers, kScaledTensors]
  Tensor values_;             // fp32 [layers, kScaledTensors, amax_history_len]
};

}  // namespace mcpp
