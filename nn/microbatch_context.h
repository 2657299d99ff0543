// State of one microbatch in the model: tensors saved for backward and delayed weight gradients.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nn/offload/activation_store.h"
#include "tensor/ops/positions.h"

namespace mcpp {

class KvCache;
class SamplePartition;

/// Tensor that is recomputed on its first use in backward instead of being kept.
struct RecomputedTensor {
  using Compute = std::function<Tensor(std::span<const Tensor> inputs)>;
  std::vector<Tensor> inputs;  ///< kept instead of `value`
  Compute compute;
  Tensor value;  ///< result, valid from the first use to the last
};

/// Stack of tensors that forward saves for backward. Each tensor must be taken by the owner that saved it, in reverse
/// order; both are checked.
class SavedTensors {
 public:
  void save(const void* owner, Tensor t) { entries_.push_back({owner, std::move(t), nullptr}); }
  void save(const void* owner, std::shared_ptr<RecomputedTensor> t) { entries_.push_back({owner, {}, std::move(t)}); }
  Tensor take(const void* owner);
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  /// Returns the bytes of the kept tensors. A tensor saved by several owners counts once.
  i64 bytes() const;

  /// Offloads the entries [first, size()) to `store`. They are reloaded when the topmost of them is taken; the reload
  /// is prefetched when the entries above them are taken.
  void offload(std::size_t first, ActivationStore& store);
  /// Starts prefetching the topmost offloaded entries.
  void prefetch() const;

 private:
  struct Entry {
    const void* owner;
    Tensor tensor;
    std::shared_ptr<RecomputedTensor> recomputed;
  };
  /// Offloaded entries [first, end), each distinct tensor once, and where to restore them.
  struct OffloadedBatch {
    struct Location {
      std::optional<std::size_t> tensor = {};  // none if the entry keeps no tensor
      Shape shape = {};
    };
    std::size_t first, end;
    std::vector<Location> locations;
    std::unique_ptr<OffloadedTensors> tensors;
  };

  /// Calls f on every tensor of the entries [first, size()), in a fixed order.
  template <class F>
  void for_each_tensor(std::size_t first, F&& f);
  void reload();

  std::vector<Entry> entries_;
  std::vector<OffloadedBatch> offloaded_;
};

class MicrobatchContext {
 public:
  bool training = true;  ///< enables dropout
  /// True if backward follows; false in evaluation and in the first forward of recomputed layers.
  bool saves_for_backward = true;
  bool delay_wgrad_compute = false;  ///< weight gradients wait for run_delayed_wgrads()
  bool is_last = true;               ///< last microbatch of the step: gradients are complete after its backward
  /// Called while an exchange of tokens between experts is in flight; may run a part of another pass. With it, weight
  /// gradients of experts are also computed during an exchange. Null: only the shared expert overlaps.
  std::function<void()> yield = nullptr;
  double grad_scale = 1;     ///< loss scale, for auxiliary losses added by layers
  std::vector<i64> samples;  ///< [b] global sample indices of the microbatch, which key dropout
  /// Values that ops read when they run, so that a recorded pass can be repeated for other microbatches. Undefined
  /// unless the pass is recorded: `samples` on the device, int64 [b], and a factor of the gradient of the loss, fp64
  /// [1], which multiplies grad_scale and the grad_scale of the loss functions.
  Tensor sample_indices, loss_factor;
  PositionRanges positions;  ///< positions of the tokens in their samples
  /// Context-parallel partition of these positions; null without context parallelism.
  std::shared_ptr<const SamplePartition> partition;
  /// First position of the document of each token, int32 [s, b], for samples packed from documents. Undefined = 0.
  Tensor attention_starts;  ///< limits attention; has the rows of attention after a head exchange
  Tensor position_starts;   ///< origin of learned and rotary positions
  Tensor sequence_starts;   ///< attention_starts of all positions of the samples; only with context parallelism
  KvCache* kv_cache = nullptr;
  SavedTensors saved_tensors;

  /// Returns a context for the same microbatch with nothing saved, for recomputing a part of the model.
  MicrobatchContext clone_for_recompute() const;

  /// Saves a tensor if backward follows. A tensor in a DiscardScope is recomputed instead of being kept.
  void save(const void* owner, const Tensor& t);
  Tensor take(const void* owner) { return saved_tensors.take(owner); }

  using Decisions = std::vector<Tensor>;
  /// Returns the result of `make`. When a layer is recomputed for backward, returns the result of the first call,
  /// because decisions must not change and must be counted once.
  Decisions decide(const void* owner, const std::function<Decisions()>& make);

  /// Selective recomputation: while the scope exists, save(t) by any owner keeps only `inputs` and `compute`. `compute`
  /// must be bitwise reproducible from `inputs` and from data that is kept until backward in any case.
  class DiscardScope {
   public:
    DiscardScope(MicrobatchContext& context, const Tensor& t, std::vector<Tensor> inputs,
                 RecomputedTensor::Compute compute);
    ~DiscardScope();
    DiscardScope(const DiscardScope&) = delete;
    DiscardScope& operator=(const DiscardScope&) = delete;

   private:
    MicrobatchContext& context_;
  };

  /// Computes a weight gradient now or, if the schedule splits backward, delays it until run_delayed_wgrads().
  void run_or_delay_wgrad(std::function<void()> weight_gradient);
  void run_delayed_wgrads();
  /// Moves the delayed weight gradients of another context to this one.
  void take_delayed_wgrads(MicrobatchContext& other);

  /// Stops computation in this context and drops its saved tensors. Its units are still acquired and released, so that
  /// ranks with and without an aborted context execute the same communication.
  void abort();
  bool is_aborted() const { return is_aborted_; }

 private:
  std::vector<std::pair<Tensor, std::shared_ptr<RecomputedTensor>>>
      discarded_;  // holds the tensors so that no address is reused
  std::vector<std::function<void()>> delayed_wgrads_;
  std::shared_ptr<std::map<const void*, Decisions>> decisions_ = std::make_shared<std::map<const void*, Decisions>>();
  bool is_aborted_ = false;
};

}  // namespace mcpp
