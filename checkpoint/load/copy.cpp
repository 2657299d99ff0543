#include "checkpoint/load/copy.h"

#include <algorithm>

namespace mcpp {

std::vector<ShardSpec> pieces_of(const TensorEntry& tensor) {
  std::vector<ShardSpec> pieces;
  const i64 elements = numel(tensor.global);
  for (i64 begin = 0; begin < elements; begin += kCopiedPiece) {
    ShardSpec spec;
    static_cast<Region&>(spec) = full_region({tensor.global, Shape(tensor.global.size(), 0), tensor.global});
    spec.flat_begin = begin;
    spec.flat_end = std::min(begin + kCopiedPiece, elements);
    spec.name = tensor.name;
    spec.dtype = tensor.dtype;
    pieces.push_back(std::move(spec));
  }
  return pieces;
}

CopiedTensors::CopiedTensors(CheckpointReader& reader) : reader_(reader) {
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    for (ShardSpec& piece : pieces_of(tensor)) specs_.push_back(std::move(piece));
  }
}

Tensor CopiedTensors::data(std::size_t index) {
  const ShardSpec& spec = specs_[index];
  NamedShard piece(spec.name, spec.box, spec.flat_begin, spec.flat_end,
                   Tensor::empty({spec.numel()}, spec.dtype, host_, MemoryClass::Other));
  reader_.read(piece);
  return piece.data;
}

}  // namespace mcpp
