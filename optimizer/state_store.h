// Where an optimizer's states are kept: what it remembers of each weight from step to step.
#pragma once
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

/// Holds the states of segments, which are numbered 0, 1, ... in the order in which they were added. The optimizer uses
/// one segment at a time, in that order (some it may leave out), each between its fetch() and its drop(): a store that
/// keeps states elsewhere can bring the next one meanwhile.
class StateStore {
 public:
  virtual ~StateStore() = default;

  /// Makes room for `states` vectors of `count` elements each, of zeros.
  virtual void add(std::size_t states, i64 count) = 0;
  /// The states of a segment, on the device that updates it, to be read and written until drop().
  virtual std::vector<Tensor> fetch(std::size_t segment) = 0;
  virtual void drop(std::size_t segment) = 0;
  /// Where the states lie while nobody uses them: their storage, on any device, does not move as long as the store
  /// lives. Checkpoints are written from there and read into it, between steps.
  virtual const std::vector<Tensor>& at_rest(std::size_t segment) const = 0;
};

/// States that stay in the memory of the device, in the given type.
std::unique_ptr<StateStore> make_resident_states(DType dtype, Device& device);

}  // namespace mcpp
