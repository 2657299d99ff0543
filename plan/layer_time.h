// How long one microbatch takes in one layer, in the embedding and in the output, on one rank.
#pragma once
#include "plan/implementation.h"
#include "plan/layout.h"
#include "plan/products.h"

namespace mcpp {

/// Seconds of one pass by what they are spent on.
struct PassTime {
  double products = 0, attention = 0, elementwise = 0;
  double tensor_parallel = 0, context_parallel = 0, data_parallel = 0;  ///< communication that nothing hides

  double total() const {
    return products + attention + elementwise + tensor_parallel + context_parallel + data_parallel;
  }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
};

struct UnitTime {
  PassTime forward, backward_input, backward_weight;

  PassTime total() const;
  UnitTime& operator+=(const UnitTime& other);
  UnitTime operator*(double factor) const;
};

/// What a step is predicted from.
struct Job {
  const Hardware& hardware;
  const Implementation& program;
  const Workload& work;
  Layout layout;
};

/// A layer of average attention, kept as the layout says when it is not in a group that is recomputed.
UnitTime layer_time(const Job& job);
/// The same with all of it computed again in backward, which is part of backward_input.
UnitTime recomputed(const UnitTime& layer);
/// The matrix products of its forward pass on one rank, by name.
std::vector<std::pair<std::string, ProductShape>> layer_products(const Job& job);
UnitTime embedding_time(const Job& job);
/// Output matrix and loss.
UnitTime output_time(const Job& job);

}  // namespace mcpp
