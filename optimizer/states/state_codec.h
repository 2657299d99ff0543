// In which form the states of an element are kept, and the form in which they are updated, the wide one.
#pragma once
#include <span>

#include "nn/offload/state_store.h"
#include "tensor/ops/narrow/quantize.h"

namespace mcpp {

/// Wide: fp32, in fp64 models fp64. Signed and NonNegative: as tensor/ops/narrow/quantize.h. Remainder: of master
/// weights, what the model's weights in bf16 lack (tensor/ops/narrow/param_remainders.h); for the first state alone.
enum class StateForm : u8 { Wide, Bf16, Signed, NonNegative, Remainder };

/// Of the states of a segment, in order. Checkpoints hold all of them in the wide type: what is kept in another form is
/// widened when it is saved, exactly, and rounded to its form when it is loaded; so it comes back as it was, and any
/// form loads any other.
class StateCodec {
 public:
  StateCodec(std::vector<StateForm> forms, DType wide);

  /// What a segment of `count` elements keeps, vector after vector.
  std::vector<StateVector> vectors(i64 count) const;
  /// Elements that are best decoded at a time: all where nothing is to be decoded.
  i64 tile(i64 count) const { return is_plain_ ? count : kTile; }

  /// Elements [first, first + count) of each state, from the vectors of a segment: views, or copies for which encode()
  /// is called after changes. `first` and `count` are multiples of kQuantizedBlock unless all are wide.
  std::vector<Tensor> decode(std::span<const Tensor> vectors, i64 first, i64 count) const;
  void encode(std::span<const Tensor> states, std::span<const Tensor> vectors, i64 first) const;

  /// Whether the master weights are kept as remainders. Then decode() gives no more than room for them; join() puts
  /// there what they are, of the model's weights of these elements on the same device, and split() keeps what they
  /// became beside these, once they were rounded to them.
  bool has_remainders() const { return !states_.empty() && states_.front().form == StateForm::Remainder; }
  void join(std::span<const Tensor> vectors, i64 first, const Tensor& model, Tensor& master) const;
  void split(const Tensor& master, std::span<const Tensor> vectors, i64 first) const;

  /// Elements [first, first + count) of a state of a segment at rest, in the wide type. `model`: their weights in the
  /// model, for a Remainder.
  std::shared_ptr<StoredNumbers> at_rest(StateStore& store, std::size_t segment, std::size_t state, i64 first,
                                         i64 count, const std::shared_ptr<StoredNumbers>& model) const;

 private:
  /// Of a state, where its vectors begin among those of the segment.
  struct State {
    StateForm form;
    std::size_t vector;
  };
  static constexpr i64 kTile = i64{1} << 17;  // in the second cache, with weights and gradient

  std::vector<State> states_;
  DType wide_;
  bool is_plain_ = true;
};

}  // namespace mcpp
