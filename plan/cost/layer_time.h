// How long one microbatch takes in one layer, in the embedding and in the output, on one rank.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "plan/cost/job.h"
#include "plan/cost/pass_time.h"
#include "plan/cost/products.h"

namespace mcpp {

enum class LayerKind { Dense, Experts };

/// One of the two branches of a layer, with its norm and what adds it to the stream.
enum class LayerHalf { Attention, Mlp };
UnitTime half_time(const Job& job, LayerKind kind, LayerHalf half);
/// A layer of average attention, kept as the layout says when it is not in a group that is recomputed.
UnitTime layer_time(const Job& job, LayerKind kind = LayerKind::Dense);
/// The matrix products of a layer's forward pass on one rank, by name: of all kinds that the model has.
std::vector<std::pair<std::string, ProductShape>> layer_products(const Job& job);
UnitTime embedding_time(const Job& job);
/// Output matrix and loss.
UnitTime output_time(const Job& job);

}  // namespace mcpp
