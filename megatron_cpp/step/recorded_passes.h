// Passes of microbatches that are recorded in device graphs and run again with a single call, for models so small that
// the host needs longer to queue the operations of a pass than the device needs to execute them.
#pragma once
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "megatron_cpp/step/micro_batch.h"
#include "tensor/device_graph.h"
#include "tensor/memory_arena.h"

namespace mcpp {

/// Inputs of a recorded pass, at fixed addresses.
struct RecordedInputs {
  MicroBatch batch;       ///< tensors of the pass; `samples` is not updated, see sample_indices
  Tensor sample_indices;  ///< int64 [b], see MicrobatchContext
  Tensor loss_factor;     ///< fp64 [1], see MicrobatchContext
};

/// Forward and backward of the microbatches of a full model. Passes of one kind queue the same operations: they have
/// the same shapes and the same effect on gradients (the first pass of a step overwrites them, later passes add to
/// them). During the warm-up, passes run without recording, while libraries load kernels and choose algorithms. Then
/// the first pass of a kind runs in the arena of the recordings and sizes it, and the second pass is recorded.
/// Recording does not change results, which stay bitwise identical. After the warm-up, all passes use the memory of the
/// arena, recorded or not.
class RecordedPasses {
 public:
  /// Queues forward and backward of a microbatch, and returns the losses per token. Must not wait for the device.
  using Pass = std::function<Tensor(const RecordedInputs& inputs)>;

  /// `model` must outlive this object and keep the addresses of its weights and gradients.
  RecordedPasses(GPTModel& model, i64 warmup_steps) : model_(model), warmup_steps_(warmup_steps), arena_(device()) {}

  /// Begins a training step. Returns false during the warm-up, in which passes must not call run(). While the profiler
  /// traces or layers are observed, passes are neither recorded nor replaced by recordings.
  bool begin_step(bool records_logits);
  /// Ends a step that was not aborted.
  void end_step() { ++steps_; }
  /// Runs the pass of the next microbatch of the step. `grad_scale` multiplies its gradients. Returns the losses per
  /// token, valid until the next call.
  Tensor run(const MicroBatch& batch, double grad_scale, const Pass& pass);

  /// Runs `f`, a pass outside of training steps, for example of an evaluation. After the warm-up, f uses the memory of
  /// the recordings, and its tensors must not outlive the call.
  void use_arena(const std::function<void()>& f);

  /// Returns the size of the arena in bytes.
  i64 arena_bytes() const { return arena_.bytes(); }
  /// Returns the number of recordings.
  i64 count() const;

 private:
  /// Kind of a pass: passes with equal keys queue the same operations.
  struct Key {
    bool is_first, records_logits;
    bool has_attention_starts, has_position_starts;
    Shape shape;
    auto operator<=>(const Key&) const = default;
  };
  /// Parameter that has a gradient after a pass, and the addresses that the pass uses.
  struct Written {
    Param* param;
    const void *weight, *gradient;
  };
  struct Recording {
    RecordedInputs inputs = {};
    Tensor scalars = {};  ///< memory of sample_indices and loss_factor
    bool is_sized = false;
    std::unique_ptr<DeviceGraph> graph = nullptr;
    Tensor per_token = {};  ///< result, outside of the arena
    std::vector<Written> written = {};
  };

  Device& device() const { return model_.context().device; }
  bool is_warm() const { return steps_ >= warmup_steps_; }
  Recording make_recording(const MicroBatch& batch) const;
  void write_inputs(const MicroBatch& batch, double grad_scale, Recording& recording) const;
  void record(const Pass& pass, Recording& recording);

  GPTModel& model_;
  i64 warmup_steps_, steps_ = 0;
  bool is_first_ = true, records_logits_ = false;  // describe the next pass
  bool is_eager_ = false;                          // passes of this step are not recorded
  MemoryArena arena_;                              // before the recordings, which use it
  std::map<Key, Recording> recordings_;
};

}  // namespace mcpp
