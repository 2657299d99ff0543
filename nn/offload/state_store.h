// Where numbers are kept from step to step: what an optimizer remembers of each weight, or the weights themselves.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/io/offload_tier.h"
#include "tensor/stored_numbers.h"

namespace mcpp {

/// Room for so many numbers of a type.
struct StateVector {
  DType dtype;
  i64 count;

  i64 bytes() const { return count * size_of(dtype); }
};

/// Holds the states of segments, which are numbered 0, 1, ... in the order in which they were added. Its user has one
/// segment at a time, each between its fetch() and its drop().
class StateStore {
 public:
  virtual ~StateStore() = default;

  /// Longer segments are to be cut: elements, 0 = as long as they come.
  virtual i64 longest_segment() const { return 0; }
  /// Makes room for the states of a segment, which begin as zeros.
  virtual void add(const std::vector<StateVector>& states) = 0;
  /// After the last add(): takes what room must be there before the training begins.
  virtual void reserve() {}

  /// In which order segments are going to be fetched next, so that the first can be brought meanwhile. Who fetches
  /// others does not fail, but waits.
  virtual void expect(const std::vector<std::size_t>& /*order*/) {}
  /// The states of a segment, on the device that updates it, to be read and written until drop().
  virtual std::vector<Tensor> fetch(std::size_t segment) = 0;
  virtual void drop(std::size_t segment) = 0;
  /// The same, where nothing was written.
  virtual void drop_unchanged(std::size_t segment) { drop(segment); }
  /// Whether every fetch() gives memory of the weights' own device, and moves nothing.
  virtual bool is_resident() const = 0;
  /// Whether that of this segment does.
  virtual bool is_segment_resident(std::size_t /*segment*/) const { return is_resident(); }

  /// Numbers [first, first + count) of a vector where it lies while nobody uses it. Checkpoints are written from there
  /// and read into it, between steps; what was read into it is there for the next fetch().
  virtual std::shared_ptr<StoredNumbers> at_rest(std::size_t segment, std::size_t vector, i64 first, i64 count) = 0;

  /// Of all segments.
  virtual BytesAway bytes_away() const { return {}; }
  /// For the log: "on the disk of /scratch (direct I/O, io_uring), 1.2 GiB"; empty for what needs no mention.
  virtual std::string describe() const { return ""; }
};

/// States that stay in the memory of the device.
std::unique_ptr<StateStore> make_resident_states(Device& device, MemoryClass c = MemoryClass::OptimizerState);

/// Numbers in the memory of a tensor.
std::shared_ptr<StoredNumbers> in_memory(Tensor values);

}  // namespace mcpp
