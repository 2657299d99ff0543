// The tokens that a tensor-parallel rank routes where all ranks have all of them: its part, so that none is routed
// twice.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

class TokenPart {
 public:
  /// Null: this rank routes all that it has.
  explicit TokenPart(Communicator* tp) : tp_(tp && tp->size() > 1 ? tp : nullptr) {}

  /// Of `rows` rows, where this rank's begin, and how many they are.
  i64 first_row(i64 rows) const;
  i64 count(i64 rows) const;
  /// Of x [rows, h]; as many on every rank, filled up with zeros.
  Tensor of(const Tensor& x) const;
  /// All `rows` rows, from what of() gave on every rank; called by all.
  Tensor whole(const Tensor& part, i64 rows) const;

 private:
  i64 rows_each(i64 rows) const;

  Communicator* tp_;
};

}  // namespace mcpp
