// The memory of a model's parameters and gradients: one flat vector each, in which every Param is a view, and the verbs
// that keep them consistent over the data-parallel ranks. The loop over units (blocks) calls acquire before and release
// after each use of a unit; the stages of ZeRO (Rajbhandari et al. 2020) are implementations of the same verbs.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/plan.h"
#include "tensor/param.h"

namespace mcpp {

enum class Use : u8 { Forward, Backward };

struct UnitParam {
  Param* param;  ///< must outlive the buffer; each parameter once
  int unit;      ///< must not decrease along the list
};

/// Elements [begin, begin + params.numel()) of the flat vectors whose weights this rank updates.
struct ShardSegment {
  i64 begin = 0;
  Tensor params;  ///< one axis, in the model's type
  Tensor grads;   ///< one axis, fp32 (fp64 in an fp64 model); padding is zero
};

/// One per pipeline chunk. A step: clear_grads(), then per microbatch acquire/release of units by forward and backward,
/// then finish(), after which shard() holds gradients summed over the group.
class ParamAndGradBuffer {
 public:
  virtual ~ParamAndGradBuffer() = default;
  ParamAndGradBuffer(const ParamAndGradBuffer&) = delete;
  ParamAndGradBuffer& operator=(const ParamAndGradBuffer&) = delete;

  /// Makes the weights of `unit` (and, for Backward, room for its gradients) ready to be used.
  virtual void acquire(int unit, Use use) = 0;
  /// The unit is not used until its next acquire. `last`: this was its last use of that kind in the step; with
  /// Backward its gradients are complete, deferred weight gradients included.
  virtual void release(int unit, Use use, bool last) = 0;
  /// Completes the reduction of all gradients, also of units that were never released, and waits for it.
  virtual void finish() = 0;
  /// What this rank updates, in increasing order of `begin`.
  virtual std::vector<ShardSegment> shard() const = 0;

  /// Forgets all gradients: the next ones overwrite them. Writes no memory.
  void clear_grads();

  const BufferPlan& plan() const { return plan_; }
  /// In the order of plan().params.
  std::span<Param* const> params() const { return params_; }
  DType dtype() const { return dtype_; }
  Device& device() const { return device_; }

 protected:
  ParamAndGradBuffer(std::span<const UnitParam> params, DType dtype, Device& device, Communicator& dp,
                     i64 bucket_elements);
  virtual void begin_step() = 0;  ///< part of clear_grads()

  DType grad_dtype() const { return dtype_ == DType::F64 ? DType::F64 : DType::F32; }
  Communicator& dp() const { return dp_; }

 private:
  std::vector<Param*> params_;
  DType dtype_;
  Device& device_;
  Communicator& dp_;
  BufferPlan plan_;
};

/// Lays out and allocates (zero-filled) the parameters and gradients, and makes value and main_grad of each Param views
/// of them; what these held before is dropped. `dtype` is the model's type: fp32, bf16 or fp64. `bucket_elements` as in
/// plan_buffer. BadInput for a ZeRO stage that does not exist.
std::unique_ptr<ParamAndGradBuffer> make_param_and_grad_buffer(std::span<const UnitParam> params, DType dtype,
                                                               Device& device, Communicator& dp, int zero_stage,
                                                               i64 bucket_elements);

}  // namespace mcpp
