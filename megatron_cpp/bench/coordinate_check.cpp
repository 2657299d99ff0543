#include "megatron_cpp/bench/coordinate_check.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/bench/svg.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/model_provider.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

i64 scaled(const char* key, i64 value, i64 width, const ModelConfig& model) {
  check_input(value * width % model.hidden_size == 0, "--widths: ", width, ": model.", key, " ", value, " x ", width,
              " / ", model.hidden_size, " is not an integer; choose multiples of ",
              model.hidden_size / std::gcd(value, model.hidden_size));
  return value * width / model.hidden_size;
}

PerLayer<i64> scaled(const char* key, const PerLayer<i64>& values, i64 width, const ModelConfig& model) {
  std::vector<i64> list;
  for (const i64 value : values.values()) list.push_back(scaled(key, value, width, model));
  return PerLayer(std::move(list));
}

std::vector<float> host_values(const Tensor& t) {
  Tensor wide = Tensor::empty(t.shape(), DType::F32, t.device(), MemoryClass::Workspace);
  ops::copy(t, wide);
  return read_values<float>(wide);
}

/// Returns the outputs of all layers, and the logits of the vocabulary without padding.
std::vector<std::vector<float>> activations(TrainingState& state, const MicroBatch& batch) {
  GPTModel& model = *state.chunks()[0].model;
  std::vector<std::vector<float>> all;
  model.observe_layers([&](i64, const Tensor& y) { all.push_back(host_values(y)); });
  MicrobatchContext context;
  context.training = context.saves_for_backward = false;
  context.samples = batch.samples;
  const Tensor logits = model.logits(batch.tokens, context);
  model.observe_layers(nullptr);
  const auto padded = static_cast<std::size_t>(logits.dim(1)),
             vocab = static_cast<std::size_t>(model.context().config.vocab_size);
  const std::vector<float> values = host_values(logits);
  std::vector<float>& valid = all.emplace_back();
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i % padded < vocab) valid.push_back(values[i]);
  return all;
}

double mean_magnitude(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += std::abs(static_cast<double>(x));
  return sum / static_cast<double>(values.size());
}

double mean_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
  return sum / static_cast<double>(a.size());
}

/// Size and change of each activation of one model.
std::vector<std::pair<double, double>> train_and_measure(const Config& config, i64 steps, const World& world) {
  Session session = initialize(config, world);
  TrainingState state(model_provider(config, session), config.optimizer, session.parallel,
                      storage_provider(config, session));
  const MicroBatch batch = random_batch(state.chunks()[0].model->context(), config.training.micro_batch_size);
  const std::vector<std::vector<float>> before = activations(state, batch);
  for (i64 step = 0; step < steps; ++step) {
    const StepOutcome outcome =
        state.train_step(std::span(&batch, 1), config.optimizer.lr, config.optimizer.weight_decay);
    check_input(outcome.status == StepStatus::Fine,
                "coordinate_check: the loss or its gradient is not finite at width ", config.model.hidden_size,
                ", step ", step + 1, "; lower optimizer.lr ", config.optimizer.lr);
  }
  const std::vector<std::vector<float>> after = activations(state, batch);
  std::vector<std::pair<double, double>> measured;
  for (std::size_t i = 0; i < after.size(); ++i)
    measured.emplace_back(mean_magnitude(after[i]), mean_difference(after[i], before[i]));
  return measured;
}

}  // namespace

double fit_exponent(const std::vector<i64>& widths, const std::vector<double>& values) {
  const auto n = static_cast<double>(widths.size());
  double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
  for (std::size_t i = 0; i < widths.size(); ++i)
    mean_x += std::log(static_cast<double>(widths[i])) / n, mean_y += std::log(values[i]) / n;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const double x = std::log(static_cast<double>(widths[i])) - mean_x;
    xy += x * (std::log(values[i]) - mean_y), xx += x * x;
  }
  return xy / xx;
}

Config config_at_width(const Config& config, i64 width) {
  Config result = config;
  const ModelConfig& from = config.model;
  ModelConfig& m = result.model;
  m.kv_channels = from.head_dim();
  m.num_attention_heads = scaled("num_attention_heads", from.num_attention_heads, width, from);
  m.num_query_groups = scaled("num_query_groups", from.num_query_groups, width, from);
  m.ffn_hidden_size = scaled("ffn_hidden_size", from.ffn_hidden_size, width, from);
  m.moe.ffn_hidden_size = scaled("moe_ffn_hidden_size", from.moe.ffn_hidden_size, width, from);
  m.moe.shared_expert_intermediate_size =
      scaled("moe_shared_expert_intermediate_size", from.moe.shared_expert_intermediate_size, width, from);
  if (m.mup.is_used && m.mup.base_hidden_size == 0) m.mup.base_hidden_size = from.hidden_size;
  m.hidden_size = width;
  m.hidden_dropout = m.attention_dropout = 0;
  return result;
}

CoordinateCheck run_coordinate_check(const Config& config, const std::vector<i64>& widths, i64 steps, i64 seeds,
                                     const World& world) {
  CoordinateCheck check{.widths = widths, .rows = {}};
  std::vector<Config> configs;  // all are checked before the first runs
  for (const i64 width : widths) {
    configs.push_back(config_at_width(config, width));
    check_problems(configs.back().conflicts());
    check_layout(configs.back(), 1);
  }
  for (std::size_t w = 0; w < widths.size(); ++w) {
    for (i64 seed = 0; seed < seeds; ++seed) {
      Config seeded = configs[w];
      seeded.training.seed += seed;
      const auto measured = train_and_measure(seeded, steps, world);
      if (check.rows.empty()) {
        for (std::size_t i = 0; i + 1 < measured.size(); ++i) check.rows.push_back({str("layer ", i), {}, {}});
        check.rows.push_back({"logits", {}, {}});
      }
      for (std::size_t i = 0; i < check.rows.size(); ++i) {
        CoordinateRow& row = check.rows[i];
        row.sizes.resize(w + 1), row.changes.resize(w + 1);
        row.sizes[w] += measured[i].first / static_cast<double>(seeds);
        row.changes[w] += measured[i].second / static_cast<double>(seeds);
      }
    }
  }
  return check;
}

std::string coordinate_table(const CoordinateCheck& check) {
  std::string text;
  std::vector<std::string> steep;
  for (const bool is_change : {false, true}) {
    text += pad_right(is_change ? "mean |change|" : "mean |value|", 14);
    for (const i64 width : check.widths) text += pad_left(str(width), 10);
    text += pad_left("exponent", 10) + "\n";
    for (const CoordinateRow& row : check.rows) {
      const std::vector<double>& values = is_change ? row.changes : row.sizes;
      const double exponent = fit_exponent(check.widths, values);
      text += pad_right(row.name, 14);
      for (const double value : values) text += pad_left(significant(value, 3), 10);
      text += pad_left(fixed(exponent, 2), 10) + "\n";
      if (is_change && !(std::abs(exponent) <= kFlatExponent))
        steep.push_back(str(row.name, exponent > 0 ? " grows" : " shrinks"));
    }
    text += "\n";
  }
  const std::string limit = str("width^", kFlatExponent);
  return text + (steep.empty() ? str("flat: no change grows or shrinks faster than ", limit)
                               : str("not flat: the change of ", join(steep, ", that of "), " faster than ", limit));
}

namespace {

constexpr const char* kLineWidth = "stroke-width=\"2\"";

/// Panel of a chart: position, title, and range of its logarithmic axes.
struct Panel {
  double left, min_x, max_x, min_y, max_y;
  static constexpr double kTop = 64, kWidth = 300, kHeight = 220;

  double x(double width) const { return left + std::log(width / min_x) / std::log(max_x / min_x) * kWidth; }
  double y(double value) const { return kTop + kHeight - std::log(value / min_y) / std::log(max_y / min_y) * kHeight; }
};

std::string color_of(std::size_t row, std::size_t rows) {
  if (row + 1 == rows) return "#c2410c";  // logits
  return str("hsl(215,65%,", 25 + 45 * row / std::max<std::size_t>(1, rows - 1), "%)");
}

/// Draws one line per row, with a tick at every width and at every power of 10 or, in a narrow range, of 2.
std::string draw_panel(const CoordinateCheck& check, bool is_change, double left) {
  const auto values_of = [&](const CoordinateRow& row) -> const std::vector<double>& {
    return is_change ? row.changes : row.sizes;
  };
  double low = values_of(check.rows[0])[0], high = low;
  for (const CoordinateRow& row : check.rows)
    for (const double value : values_of(row)) low = std::min(low, value), high = std::max(high, value);
  const double base = high / low > 30 ? 10 : 2;
  const auto power = [&](double exponent) { return std::pow(base, exponent); };
  const double first = std::floor(std::log(low) / std::log(base)), last = std::ceil(std::log(high) / std::log(base));
  const Panel panel{left, static_cast<double>(check.widths.front()), static_cast<double>(check.widths.back()),
                    power(first), power(std::max(last, first + 1))};
  std::string svg = svg_text(left, Panel::kTop - 12, "start", is_change ? "mean |change|" : "mean |value|");
  for (double e = first; e <= std::max(last, first + 1); ++e) {
    const double y = panel.y(power(e));
    svg += svg_line(str("M", fixed(left, 1), " ", fixed(y, 1), "h", fixed(Panel::kWidth, 1)), "#ddd");
    svg += svg_text(left - 6, y + 4, "end", significant(power(e), 2));
  }
  for (const i64 width : check.widths)
    svg += svg_text(panel.x(static_cast<double>(width)), Panel::kTop + Panel::kHeight + 18, "middle", str(width));
  svg += svg_text(left + Panel::kWidth / 2, Panel::kTop + Panel::kHeight + 36, "middle", "hidden_size");
  for (std::size_t r = 0; r < check.rows.size(); ++r) {
    std::string points;
    for (std::size_t i = 0; i < check.widths.size(); ++i)
      points += str(i == 0 ? "M" : "L", fixed(panel.x(static_cast<double>(check.widths[i])), 1), " ",
                    fixed(panel.y(values_of(check.rows[r])[i]), 1));
    svg += svg_line(points, color_of(r, check.rows.size()), kLineWidth);
  }
  return svg;
}

}  // namespace

std::string coordinate_chart(const CoordinateCheck& check, const std::string& title) {
  constexpr double kLeft = 60, kRight = 430, kLegend = 750;
  const double height = Panel::kTop + std::max(Panel::kHeight + 40, 18 * static_cast<double>(check.rows.size()));
  std::string svg = svg_text(kLeft, 24, "start", title);
  svg += draw_panel(check, false, kLeft) + draw_panel(check, true, kRight);
  for (std::size_t r = 0; r < check.rows.size(); ++r) {
    const double y = Panel::kTop + 18 * static_cast<double>(r);
    svg += svg_line(str("M", fixed(kLegend, 1), " ", fixed(y, 1), "h16"), color_of(r, check.rows.size()), kLineWidth) +
           svg_text(kLegend + 22, y + 4, "start", check.rows[r].name);
  }
  return svg_document(850, height, svg);
}

}  // namespace mcpp
