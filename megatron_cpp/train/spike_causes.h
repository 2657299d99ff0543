// Probable causes of a step whose loss or gradient is a spike or not finite: layers whose gradient norm rose, and the
// text of the samples with the largest losses.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "data/dataset/dataset.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Gradient norm of a layer.
struct LayerNorm {
  std::string layer;
  double norm = 0;   ///< in the step
  double usual = 0;  ///< root mean square over earlier steps; 0 if there were none
};

/// Returns the layers in one line: those whose norm is not finite, otherwise the three whose norm rose most.
std::string describe_layer_norms(std::vector<LayerNorm> layers);

/// Gradient norms of the layers in the last step, and their means over earlier steps of this process.
class LayerNormHistory {
 public:
  /// The means forget steps exponentially, over about `window` steps. `state` must record layer squares.
  LayerNormHistory(StoredRef<TrainingState> state, Communicator& world, i64 window);

  /// Adds the last update() to the means, unless its batch had no targets. `tokens` is StepOutcome::tokens. Does not
  /// wait for the device.
  void add_step(i64 tokens);
  /// Returns the norms in the last update(), in model order, on all ranks. Collective.
  std::vector<LayerNorm> last_step(i64 tokens) const;

 private:
  /// Returns the factor that turns the summed gradients into the gradients of the mean loss.
  double scale(i64 tokens) const {
    return 1 / (state_.updated_grad_scale() * static_cast<double>(std::max<i64>(tokens, 1)));
  }

  const TrainingState& state_;
  Communicator& world_;
  i64 window_, steps_ = 0;
  std::vector<std::string> layers_;  // layers of Optimizer::layer_squares(); "" if another rank represents them
  Tensor means_;                     // fp64 [layers], of the squares of true gradients
};

/// Returns, by sample of the last update(), the sum of the losses of its targets divided by model.seq_length, on all
/// ranks; empty if they were not recorded. Collective.
std::map<i64, double> mean_sample_losses(const TrainingState& state, Communicator& world);

/// Description of the samples of a batch: data file, documents, and the beginning of the text.
class SampleDescriber {
 public:
  /// `first_sample` is the number of the dataset's first sample.
  SampleDescriber(const Config& config, const Dataset& dataset, i64 first_sample);

  /// Returns a line for each of the `max_samples` samples with the largest losses; NaN counts as largest.
  std::string describe(const std::map<i64, double>& losses, std::size_t max_samples = 8) const;

 private:
  std::string describe_sample(i64 sample) const;

  const Dataset& dataset_;
  i64 first_sample_;
  std::optional<Tokenizer> tokenizer_;
};

}  // namespace mcpp
