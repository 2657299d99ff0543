// Shard of the tokens that a tensor-parallel rank routes if all ranks have all tokens, so that none is routed twice.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

class SequenceShard {
 public:
  /// Null: this rank routes all its tokens.
  explicit SequenceShard(Communicator* tp) : tp_(tp && tp->size() > 1 ? tp : nullptr) {}

  /// Return the first row of this rank's part and its size, given `rows` rows in total.
  i64 first_row(i64 rows) const;
  i64 count(i64 rows) const;
  /// Returns this rank's part of x [rows, h], padded with zeros to the same size on every rank.
  Tensor of(const Tensor& x) const;
  /// Gathers all `rows` rows from the parts returned by of(). Collective.
  Tensor whole(const Tensor& part, i64 rows) const;

 private:
  i64 rows_each(i64 rows) const;

  Communicator* tp_;
};

}  // namespace mcpp
