// Performance model of the training program: how often its kernels pass over memory, and what communication overlaps
// with what. Matrix products and attention belong to the hardware. The defaults describe this program; tests describe
// others to compare predictions with published results.
#pragma once

namespace mcpp {

/// Number of times a tensor is read or written, in elements of the training precision.
struct MemoryPasses {
  double forward = 0, backward = 0;
};

struct KernelTraits {
  MemoryPasses norm{2, 4};  ///< over the residual stream, for each of a layer's two norms; backward adds to a gradient
  MemoryPasses residual{3, 1};    ///< the residual stream again, for the addition of a branch with its bias and dropout
  MemoryPasses heads{2, 2};       ///< over queries, keys and values: rotation and layout changes
  MemoryPasses activation{1, 1};  ///< times the minimum
  double loss = 2;                ///< over the logits, forward and backward together
  MemoryPasses kernels{12, 20};   ///< kernels launched per layer, except products
  double attention = 1;           ///< speed of attention relative to the rate that the hardware attains
  bool stores_scores = false;     ///< attention stores its scores [s, s] in memory, in the training precision
  MemoryPasses scores{4.5, 5.5};  ///< over stored scores, for softmax and dropout
  /// fp8 products: passes to find scales and to round, over inputs and weights, and over output gradients.
  MemoryPasses quantize{2.5, 4};
  double requantize = 1.5;  ///< over inputs and weights again, in backward
  double recomputed_products =
      0;  ///< fraction of a layer's products that backward recomputes although the layer is partly kept
  bool overlaps_data_parallel = true;  ///< gradients are reduced and weights gathered concurrently with compute
  int gradient_bytes = 4;              ///< per element of a gradient that is reduced across ranks
  bool scatters_messages = false;      ///< between stages without sequence parallelism: each rank sends its shard
  // Handling of a layer's weights in ZeRO 3.
  bool gathers_again_to_recompute = false;  ///< gathers once more between recomputation and backward
  bool gathers_each_tensor = false;         ///< gathers tensors one after another instead of a whole layer
  bool all_reduces_gradients = false;       ///< all-reduces instead of reduce-scatters: twice the volume
};

}  // namespace mcpp
