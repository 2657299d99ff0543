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
class SampleCut;

/// Tensor that is recomputed when backward first needs it, instead of being kept.
struct Recomputed {
  using Compute = std::function<Tensor(std::span<const Tensor> inputs)>;
  std::vector<Tensor> inputs;  ///< kept instead of it
  Compute compute;
  Tensor value;  ///< once computed, until its last user is done
};

/// Stack of tensors that forward saves for backward. Each tensor must be taken by the owner that saved it, in reverse
/// order; both are checked.
class Stash {
 public:
  void save(const void* owner, Tensor t) { entries_.push_back({owner, std::move(t), nullptr}); }
  void save(const void* owner, std::shared_ptr<Recomputed> t) { entries_.push_back({owner, {}, std::move(t)}); }
  Tensor take(const void* owner);
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  /// Returns the bytes of the kept tensors. A tensor saved by several owners counts once.
  i64 bytes() const;

  /// Offloads the entries [first, size()) to `store`. They are reloaded when the topmost of them is taken; the reload
  /// is prefetched when the entries above them are taken.
  void put_away(std::size_t first, ActivationStore& store);
  /// Starts prefetching the topmost offloaded entries.
  void expect() const;

 private:
  struct Entry {
    const void* owner;
    Tensor kept;
    std::shared_ptr<Recomputed> recomputed;
  };
  /// Offloaded entries [first, end), each distinct tensor once, and where to restore them.
  struct Away {
    struct Place {
      std::optional<std::size_t> tensor = {};  // none if the entry keeps no tensor
      Shape shape = {};
    };
    std::size_t first, end;
    std::vector<Place> places;
    std::unique_ptr<TensorsAway> tensors;
  };

  /// Calls f on every tensor kept by the entries from `first` on, in a fixed order.
  template <class F>
  void for_each_kept(std::size_t first, F&& f);
  void bring_back();

  std::vector<Entry> entries_;
  std::vector<Away> away_;
};

class Pass {
 public:
  bool training = true;  ///< enables dropout
  /// backward will follow; false in evaluation and in the first forward of recomputed layers
  bool keeps_stash = true;
  bool defers_weights = false;  ///< weight gradients wait for run_deferred()
  bool is_last = true;          ///< last microbatch of the step: gradients are complete after its backward
  double grad_scale = 1;        ///< loss scale, for auxiliary losses added by layers
  std::vector<i64> samples;     ///< [b] global sample indices of the microbatch, which key dropout
  PositionRanges positions;     ///< positions of the tokens in their samples
  /// Context-parallel partition of these positions; null without context parallelism.
  std::shared_ptr<const SampleCut> cut;
  /// int32 [s, b], for samples packed from documents: first position of each token's document. Undefined means 0.
  Tensor attention_starts;  ///< limits attention; has the rows that attention sees after a head exchange
  Tensor position_starts;   ///< origin of learned and rotary positions
  KvCache* kv_cache = nullptr;
  Stash stash;

  /// Returns a context for the same microbatch with nothing saved, for recomputing a part of the model.
  Pass again() const;

  /// Saves a tensor for backward if there will be one. A tensor in a DiscardScope is recomputed instead of being kept.
  void save(const void* owner, const Tensor& t);
  Tensor take(const void* owner) { return stash.take(owner); }

  using Decisions = std::vector<Tensor>;
  /// Returns the result of `make`. When a layer is recomputed for backward, returns the result of the first call,
  /// because decisions must neither change nor be counted twice.
  Decisions decide(const void* owner, const std::function<Decisions()>& make);

  /// Selective recomputation: while the scope exists, save(t) by any owner keeps only `inputs` and `compute`. `compute`
  /// must be bitwise reproducible from `inputs` and from data that stays until backward anyway.
  class DiscardScope {
   public:
    DiscardScope(Pass& pass, const Tensor& t, std::vector<Tensor> inputs, Recomputed::Compute compute);
    ~DiscardScope();
    DiscardScope(const DiscardScope&) = delete;
    DiscardScope& operator=(const DiscardScope&) = delete;

   private:
    Pass& pass_;
  };

  /// Computes a weight gradient now or, if the schedule splits backward, delays it until run_deferred().
  void run_or_defer(std::function<void()> weight_gradient);
  void run_deferred();
  /// Moves the delayed weight gradients of another context to this one.
  void defer_from(Pass& other);

  /// Stops computing in this context and drops what it saved. Its units are still acquired and released, so that ranks
  /// with and without an aborted context execute the same communication.
  void give_up();
  bool is_given_up() const { return is_given_up_; }

 private:
  std::vector<std::pair<Tensor, std::shared_ptr<Recomputed>>>
      discarded_;  // holds the tensors so that no address is reused
  std::vector<std::function<void()>> deferred_;
  std::shared_ptr<std::map<const void*, Decisions>> decisions_ = std::make_shared<std::map<const void*, Decisions>>();
  bool is_given_up_ = false;
};

}  // namespace mcpp
