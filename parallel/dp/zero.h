// ZeRO stages: combinations of replicated or sharded parameters and gradients.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "parallel/dp/buckets/buffer.h"
#include "parallel/dp/store.h"
#include "parallel/layout.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

/// Storage of this rank's shard of the weights if layout.params_tier is not the device.
struct ParamOffload {
  Path folder = {};                 ///< folder of the files
  std::string key = {};             ///< configuration key that specifies the folder
  bool supports_snapshots = false;  ///< allows saves concurrent with training
  /// Creates the device's copy engine for transfers of the weights.
  std::function<std::unique_ptr<AsyncCopyEngine>(Device&)> make_copies = make_async_copy_engine;
};

class ZeroBuffer final : public ParamAndGradBuffer {
 public:
  ZeroBuffer(std::span<const UnitParam> params, DType dtype, Device& device, const DataParallelGroups& groups,
             const Layout& layout, const ParamOffload& offload);

  void acquire(int unit, Use use) override;
  void release(int unit, Use use, bool is_last) override;
  void finish() override;
  void publish() override;
  std::vector<ShardSegment> shard() const override;
  void set_exact_reduction(bool is_exact) override { grads_->set_exact_reduction(is_exact); }
  void end_step(const Tensor& factor) override { grads_->end_step(factor); }
  std::span<const PowerSgdState> power_sgd_states() const override { return grads_->power_sgd_states(); }
  bool reduces_every_microbatch() const override { return stage_ >= 2; }
  Communicator& replicas() const override { return stage_ == 0 ? groups_.shard : groups_.replicate; }

 private:
  /// Number of active uses of a unit.
  struct Uses {
    int forward = 0, backward = 0;
    bool has_last_backward = false;  ///< a backward use in the active use was the last of the step

    int& of(Use use) { return use == Use::Forward ? forward : backward; }
    bool is_active() const { return forward + backward > 0; }
  };

  void begin_step() override { grads_->begin_step(); }

  i64 stage_;
  DataParallelGroups groups_;
  StoreContext context_;
  std::unique_ptr<ParamStore> params_;
  std::unique_ptr<GradStore> grads_;
  std::map<int, Uses> in_use_;  // by unit
};

/// Plans and allocates (zero-filled) the parameters and gradients, and makes value and main_grad of each Param views of
/// them (if sharded, while the unit is acquired). Their previous contents are dropped. `dtype` is the model's type:
/// fp32, bf16, fp16 or fp64. Throws BadInput for an unknown ZeRO stage. In stage 0 nothing is sharded: groups.shard is
/// the entire data-parallel group and groups.replicate has one rank.
std::unique_ptr<ParamAndGradBuffer> make_param_and_grad_buffer(std::span<const UnitParam> params, DType dtype,
                                                               Device& device, const DataParallelGroups& groups,
                                                               const Layout& layout, const ParamOffload& offload = {});

/// Parameters and gradients of one pipeline chunk. Each grid of ranks has a buffer of its own, because experts are
/// reduced and sharded over different ranks than dense layers.
class ChunkParamBuffers {
 public:
  /// Returns the ranks of a grid over which gradients are summed. Called for the grids with parameters.
  using GroupLookup = std::function<DataParallelGroups(GridKind)>;

  /// Creates the buffers, as make_param_and_grad_buffer() does, for the parameters of each grid. Throws an Internal
  /// error for a parameter whose gradients are not Partial along dp and cp.
  ChunkParamBuffers(std::span<const UnitParam> params, DType dtype, Device& device, const GroupLookup& groups,
                    const Layout& layout, const ParamOffload& offload = {});

  /// The following functions call the function of the same name on all buffers.
  void acquire(int unit, Use use) const;
  void release(int unit, Use use, bool is_last) const;
  void clear_grads() const;
  void publish() const;
  void set_exact_reduction(bool is_exact) const;
  void end_step(const Tensor& factor) const;
  bool reduces_every_microbatch() const { return buffers_.front()->reduces_every_microbatch(); }
  void visit_weights(const ParamAndGradBuffer::PartVisitor& f) const;
  void visit_stored_weights(const ParamAndGradBuffer::StoredPartVisitor& f) const;
  void visit_grads(const ParamAndGradBuffer::PartVisitor& f) const;

  /// Returns the buffers, at least one, in the order of GridKind.
  std::vector<ParamAndGradBuffer*> buffers() const;

 private:
  std::vector<std::unique_ptr<ParamAndGradBuffer>> buffers_;
};

}  // namespace mcpp
