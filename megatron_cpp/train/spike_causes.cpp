#include "megatron_cpp/train/spike_causes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/json.h"
#include "base/number_format.h"
#include "base/strings.h"
#include "data/preprocess/verify.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "nn/layer_name.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr std::size_t kMaxNamedLayers = 3, kMaxDocuments = 4, kMaxText = 100;

/// Returns the factor by which the norm of a layer rose, or infinity if it is not finite.
double rise_of(const LayerNorm& layer) {
  if (!std::isfinite(layer.norm)) return std::numeric_limits<double>::infinity();
  return layer.usual > 0 ? layer.norm / layer.usual : layer.norm;
}

/// Returns the beginning of a text in UTF-8 on one line.
std::string beginning_of(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues_character = (byte & 0xC0U) == 0x80U;
    if (line.size() >= kMaxText && !continues_character) return line + "...";
    if (byte > ' ')
      line.push_back(c);
    else if (!line.empty() && line.back() != ' ')
      line.push_back(' ');
  }
  return line;
}

}  // namespace

std::string describe_layer_norms(std::vector<LayerNorm> layers) {
  const auto is_bad = [](const LayerNorm& layer) { return !std::isfinite(layer.norm); };
  if (const auto bad = std::ranges::count_if(layers, is_bad); bad > 0) {
    const auto last = std::find_if(layers.rbegin(), layers.rend(), is_bad);
    return str("the gradient is not finite in ", bad, " of ", layers.size(), " layers, of which ", last->layer,
               " is nearest to the loss");
  }
  std::ranges::stable_sort(layers, std::greater(), rise_of);
  std::vector<std::string> parts;
  for (const LayerNorm& layer : layers) {
    if (parts.size() == kMaxNamedLayers) break;
    parts.push_back(layer.usual > 0
                        ? str(layer.layer, " ", significant(layer.norm, 3), " (", significant(rise_of(layer), 3),
                              " times its usual ", significant(layer.usual, 3), ")")
                        : str(layer.layer, " ", significant(layer.norm, 3)));
  }
  const bool has_usual = !layers.empty() && layers.front().usual > 0;
  return str(has_usual ? "gradient norms that rose most: " : "largest gradient norms: ", join(parts, ", "));
}

LayerNormHistory::LayerNormHistory(StoredRef<TrainingState> state, Communicator& world, i64 window)
    : state_(state), world_(world), window_(window) {
  std::map<GridKind, bool> is_represented;
  for (const ParamAndGradBuffer* buffer : state_.buffers())
    is_represented[buffer->grid()] = buffer->replicas().rank() == 0;
  for (const Optimizer::NormLayer& layer : state_.optimizer().norm_layers())
    layers_.push_back(is_represented.at(layer.grid) ? layer.name : "");
  const Tensor& squares = state_.optimizer().layer_squares();
  means_ = Tensor::zeros({squares.numel()}, DType::F64, squares.device(), MemoryClass::Other);
}

void LayerNormHistory::add_step(i64 tokens) {
  if (tokens == 0) return;
  const Tensor& squares = state_.optimizer().layer_squares();
  const double weight = 1 / static_cast<double>(std::min(++steps_, window_)), factor = scale(tokens);
  Tensor step = Tensor::empty({squares.numel()}, DType::F64, squares.device(), MemoryClass::Workspace);
  ops::copy(squares, step);
  ops::scale(step, weight * factor * factor);
  ops::scale(means_, 1 - weight);
  ops::add_to(step, means_);
}

std::vector<LayerNorm> LayerNormHistory::last_step(i64 tokens) const {
  const double factor = scale(tokens);
  const std::vector<double> squares = read_values<double>(state_.optimizer().layer_squares()),
                            means = read_values<double>(means_);
  Json local = Json::array();
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (!layers_[i].empty()) local.push_back({layers_[i], squares[i] * factor * factor, means[i]});
  std::map<std::string, std::pair<double, double>> sums;
  for (const Json& of_rank : gather_values(local, world_)) {
    for (const Json& layer : of_rank) {
      auto& [square, mean] = sums[layer[0].get<std::string>()];
      square += layer[1].get<double>(), mean += layer[2].get<double>();
    }
  }
  std::vector<LayerNorm> result;
  for (const auto& [layer, sum] : sums) result.push_back({layer, std::sqrt(sum.first), std::sqrt(sum.second)});
  std::ranges::stable_sort(result, {}, [](const LayerNorm& layer) { return layer_order(layer.layer); });
  return result;
}

std::map<i64, double> mean_sample_losses(const TrainingState& state, Communicator& world) {
  Json local = Json::array();
  for (const auto& [sample, sum] : state.sample_losses()) local.push_back({sample, sum});
  std::map<i64, double> losses;
  for (const Json& of_rank : gather_values(local, world))
    for (const Json& sample : of_rank) losses[sample[0].get<i64>()] += sample[1].get<double>();
  const auto targets = static_cast<double>(state.chunks().front().model->context().config.seq_length);
  for (auto& [sample, loss] : losses) loss /= targets;
  return losses;
}

SampleDescriber::SampleDescriber(const Config& config, const Dataset& dataset, i64 first_sample)
    : dataset_(dataset), first_sample_(first_sample) {
  if (!config.data.tokenizer_model.empty()) tokenizer_.emplace(config.data.tokenizer_model);
}

std::string SampleDescriber::describe(const std::map<i64, double>& losses, std::size_t max_samples) const {
  std::vector<std::pair<i64, double>> largest(losses.begin(), losses.end());
  const auto key = [](const auto& sample) {
    return std::isnan(sample.second) ? std::numeric_limits<double>::infinity() : sample.second;
  };
  std::ranges::stable_sort(largest, std::greater(), key);
  std::string text;
  for (std::size_t i = 0; i < std::min(max_samples, largest.size()); ++i) {
    const auto& [sample, loss] = largest[i];
    text += str("\n  sample ", sample, ", loss ", significant(loss, 4), ": ", describe_sample(sample));
  }
  if (largest.size() > max_samples)
    text += str("\n  and ", largest.size() - max_samples, " samples with smaller losses");
  return text;
}

std::string SampleDescriber::describe_sample(i64 sample) const {
  // A sample past the end repeats the last one, without targets.
  const SampleView view =
      show_sample(dataset_, std::min(sample - first_sample_, dataset_.size() - 1), tokenizer_ ? &*tokenizer_ : nullptr);
  std::vector<std::string> documents;
  for (const SamplePart& part : view.origin.parts) {
    if (documents.size() == kMaxDocuments) break;
    documents.push_back(str(part.document, " (tokens ", part.offset, " to ", part.offset + part.length - 1, ")"));
  }
  const std::size_t more = view.origin.parts.size() - documents.size();
  return str(view.origin.prefix, documents.size() == 1 ? ", document " : ", documents ", join(documents, ", "),
             more > 0 ? str(" and ", more, " more") : std::string(),
             view.text.empty() ? std::string() : str(": \"", beginning_of(view.text), "\""));
}

}  // namespace mcpp
