// What a planner must know of the program that trains: beside matrix products and attention, which are the hardware's,
// how often its kernels go over memory, and what of its communication waits for what. The values here are this
// program's; tests describe others, to compare predictions with what was published of them.
#pragma once

namespace mcpp {

/// How often a tensor is read or written, in elements of the precision of training.
struct Sweeps {
  double forward = 0, backward = 0;
};

struct Implementation {
  Sweeps norm{2, 4};        ///< over the residual stream, for each of a layer's two norms; backward adds to a gradient
  Sweeps residual{3, 1};    ///< the same for what adds a branch to the stream, with its bias and dropout
  Sweeps heads{2, 2};       ///< over queries, keys and values: rotation, other layouts
  Sweeps activation{1, 1};  ///< of the fewest that it takes
  double loss = 2;          ///< over the logits, forward and backward together
  Sweeps kernels{12, 20};   ///< launched for a layer, beside products
  double attention = 1;     ///< speed of its attention, of what the hardware attains
  bool stores_scores = false;  ///< attention has its scores [s, s] in memory, in the precision of training
  Sweeps scores{4.5, 5.5};     ///< over them, for softmax and dropout, where they are stored
  /// For products in fp8, to find scales and round: over inputs and weights, and over gradients of outputs.
  Sweeps quantise{2.5, 4};
  double quantise_again = 1.5;     ///< over inputs and weights once more, in backward
  double recomputed_products = 0;  ///< part of a layer's products that backward computes again although kept in part
  bool overlaps_data_parallel = true;  ///< gradients are reduced and weights gathered while others are computed
  int gradient_bytes = 4;              ///< of an element, as they are summed over ranks
  bool scatters_messages = false;  ///< between stages without sequence parallelism: each rank sends its part of them
  // What ZeRO 3 does with a layer's weights.
  bool gathers_again_to_recompute = false;  ///< once more between recomputation and backward
  bool gathers_each_tensor = false;         ///< one after another, instead of a layer at once
  bool sums_gradients_whole = false;        ///< not scattered: twice the volume
};

}  // namespace mcpp
