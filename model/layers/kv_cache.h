// Keys and values of the tokens generated so far, so that a new token costs one position, not the whole context.
#pragma once
#include <vector>

#include "model/config/context.h"
#include "tensor/ops/ops.h"

namespace mcpp {

class KvCache {
 public:
  /// Room for `max_length` positions of `batch` sequences in every layer of the model, on this rank.
  KvCache(const ModelContext& context, i64 batch, i64 max_length);

  struct View {
    Heads k, v;
  };
  /// Copies the keys and values of new positions (from first_position on) in, and returns views of all so far.
  View append(i64 layer, const Heads& k, const Heads& v, i64 first_position);
  i64 max_length() const { return max_length_; }

 private:
  i64 max_length_;
  std::vector<Tensor> keys_, values_;  // per layer [max_length, b, groups, head_dim]
};

}  // namespace mcpp
