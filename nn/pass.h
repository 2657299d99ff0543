// One microbatch on its way through the model: what backward will need, and what weight gradients wait to be done.
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

/// A tensor that is computed again when backward first asks for it, instead of being kept.
struct Recomputed {
  using Compute = std::function<Tensor(std::span<const Tensor> inputs)>;
  std::vector<Tensor> inputs;  ///< kept in its place
  Compute compute;
  Tensor value;  ///< once computed, until the last that asked for it is done
};

/// Tensors that forward leaves for backward, last in first out. Each is taken by the owner that saved it, in reverse
/// order; both are checked, so that a wrong pairing is found at once.
class Stash {
 public:
  void save(const void* owner, Tensor t) { entries_.push_back({owner, std::move(t), nullptr}); }
  void save(const void* owner, std::shared_ptr<Recomputed> t) { entries_.push_back({owner, {}, std::move(t)}); }
  Tensor take(const void* owner);
  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  /// Bytes of the tensors kept here. One that several owners saved counts once.
  i64 bytes() const;

  /// What was saved since size() was `first` goes to `store`, which outlives this. It comes back when the last of it is
  /// taken, and begins to when what was saved after it is.
  void put_away(std::size_t first, ActivationStore& store);
  /// take() comes soon.
  void expect() const;

 private:
  struct Entry {
    const void* owner;
    Tensor kept;
    std::shared_ptr<Recomputed> recomputed;
  };
  /// Entries [first, end), whose tensors are away: each once, and where they go.
  struct Away {
    struct Place {
      std::optional<std::size_t> tensor = {};  // none where nothing was kept
      Shape shape = {};
    };
    std::size_t first, end;
    std::vector<Place> places;
    std::unique_ptr<TensorsAway> tensors;
  };

  /// Calls f on every tensor that the entries from `first` on keep, in an order that is always the same.
  template <class F>
  void for_each_kept(std::size_t first, F&& f);
  void bring_back();

  std::vector<Entry> entries_;
  std::vector<Away> away_;
};

class Pass {
 public:
  bool training = true;         ///< dropout is on
  bool keeps_stash = true;      ///< backward will come; off in evaluation and in the first forward of recomputed layers
  bool defers_weights = false;  ///< weight gradients wait for run_deferred()
  bool is_last = true;          ///< the last microbatch of its step: after its backward the gradients are complete
  double grad_scale = 1;        ///< of the loss, for losses that layers add to it
  std::vector<i64> samples;     ///< [b] global sample numbers of the microbatch: they key dropout
  PositionRanges positions;     ///< where the tokens stand in their samples
  /// How these are cut over context-parallel ranks; null where they are not.
  std::shared_ptr<const SampleCut> cut;
  /// int32 [s, b], of samples packed from documents: where the document of each token begins. Undefined = at 0.
  Tensor attention_starts;  ///< attention looks no further back; of the rows that it has after an exchange of heads
  Tensor position_starts;   ///< learned and rotary positions count from here
  KvCache* kv_cache = nullptr;
  Stash stash;

  /// A pass over the same microbatch with a stash of its own: for running a part of the model again.
  Pass again() const;

  /// Saves for backward, if there will be one. A tensor that was discarded is not kept but computed again.
  void save(const void* owner, const Tensor& t);
  Tensor take(const void* owner) { return stash.take(owner); }

  using Decisions = std::vector<Tensor>;
  /// What `make` gives; a layer that is computed again for backward gets what it was given the first time, since what
  /// was decided must not be decided otherwise, nor counted twice.
  Decisions decide(const void* owner, const std::function<Decisions()>& make);

  /// From here to the end of the scope, saving `t` (whoever does) keeps only the means to compute it again: selective
  /// recomputation. `compute` must give the same bits, from `inputs` and what stays until backward anyway.
  class DiscardScope {
   public:
    DiscardScope(Pass& pass, const Tensor& t, std::vector<Tensor> inputs, Recomputed::Compute compute);
    ~DiscardScope();
    DiscardScope(const DiscardScope&) = delete;
    DiscardScope& operator=(const DiscardScope&) = delete;

   private:
    Pass& pass_;
  };

  /// Computes a weight gradient now, or keeps that for run_deferred() when the schedule splits backward in two.
  void run_or_defer(std::function<void()> weight_gradient);
  void run_deferred();
  /// Takes over what another pass deferred.
  void defer_from(Pass& other);

  /// Nothing more is computed in this pass, and what it kept is dropped. Its units are acquired and released all the
  /// same, so that ranks which compute it and ranks which do not still communicate alike.
  void give_up();
  bool is_given_up() const { return is_given_up_; }

 private:
  std::vector<std::pair<Tensor, std::shared_ptr<Recomputed>>>
      discarded_;  // holds the tensors, so that no address is reused
  std::vector<std::function<void()>> deferred_;
  std::shared_ptr<std::map<const void*, Decisions>> decisions_ = std::make_shared<std::map<const void*, Decisions>>();
  bool is_given_up_ = false;
};

}  // namespace mcpp
