// Encoding of optimizer states between their storage form and the accumulate dtype, in which they are updated.
#pragma once
#include <span>

#include "nn/offload/state_store.h"
#include "tensor/ops/low_precision/param_remainders.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/tensor_storage.h"

namespace mcpp {

// Full-precision view of master weights that are stored as remainders, for checkpoints.

/// Stored parts of some master weights.
struct MasterParts {
  std::shared_ptr<TensorStorage> model;            ///< model weights of the same elements
  std::shared_ptr<TensorStorage> low, rounded_up;  ///< ParamRemainders of complete blocks
  i64 offset = 0;                                  ///< offset of the first element in its block
};

/// Returns fp32 weights that are composed from their parts on read, and split into them on write, including the model's
/// weights.
std::shared_ptr<TensorStorage> make_reconstructed_master(MasterParts parts);

/// Storage form of a state. AccumulateType: fp32, or fp64 in fp64 models. Signed and NonNegative: see
/// tensor/ops/low_precision/quantize.h. Remainder: master weights minus the model's bf16 weights
/// (tensor/ops/low_precision/param_remainders.h); only for the first state.
enum class StateForm : u8 { AccumulateType, Bf16, Signed, NonNegative, Remainder };

/// Encodes and decodes the states of a segment. Checkpoints store all states in the accumulate dtype: saving decodes
/// them exactly and loading rounds them to their form, so a saved state is restored bitwise, and any form can load any
/// other.
class StateCodec {
 public:
  StateCodec(std::vector<StateForm> forms, DType wide);

  /// Returns the vectors that store a segment of `count` elements, in order.
  std::vector<StateVector> vectors(i64 count) const;
  /// Returns the preferred number of elements to decode at a time; all if nothing is encoded.
  i64 tile(i64 count) const { return is_plain_ ? count : kTile; }

  /// Returns elements [first, first + count) of each state from the vectors of a segment: views, or copies for which
  /// the caller calls encode() after changes. `first` and `count` must be multiples of kQuantizedBlock unless all
  /// states are in the accumulate dtype.
  std::vector<Tensor> decode(std::span<const Tensor> vectors, i64 first, i64 count) const;
  void encode(std::span<const Tensor> states, std::span<const Tensor> vectors, i64 first) const;

  /// Returns true if the master weights are stored as remainders. Then decode() only allocates them; join() computes
  /// them from the model's weights of these elements on the same device, and split() stores the remainders after the
  /// model's weights were rounded from them.
  bool has_remainders() const { return !states_.empty() && states_.front().form == StateForm::Remainder; }
  void join(std::span<const Tensor> vectors, i64 first, const Tensor& model, Tensor& master) const;
  void split(const Tensor& master, std::span<const Tensor> vectors, i64 first) const;

  /// Returns a view of elements [first, first + count) of a stored state of a segment, in the accumulate dtype.
  /// `model`: the model's weights, for a Remainder.
  std::shared_ptr<TensorStorage> stored_view(StateStore& store, std::size_t segment, std::size_t state, i64 first,
                                             i64 count, const std::shared_ptr<TensorStorage>& model) const;

 private:
  /// A state and the index of its first vector among those of the segment.
  struct State {
    StateForm form;
    std::size_t vector;
  };
  static constexpr i64 kTile = i64{1} << 17;  // fits in the L2 cache, with weights and gradient

  std::vector<State> states_;
  DType wide_;
  bool is_plain_ = true;
};

}  // namespace mcpp
