#include "megatron_cpp/bench/quality.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/bench/svg.h"

namespace mcpp {
namespace {

/// Returns the seeds of the failed runs of a variant.
std::vector<i64> failed_seeds(const QualityComparison& comparison, const std::string& variant) {
  std::vector<i64> seeds;
  for (const QualityRun& run : comparison.runs)
    if (run.variant == variant && !run.failure.empty()) seeds.push_back(run.seed);
  return seeds;
}

/// Returns the verdict on a difference in percent: compares its confidence interval with the largest accepted
/// difference.
std::string verdict_on(const MeanEstimate& difference, std::optional<double> max_difference,
                       const std::string& baseline) {
  if (difference.count < 2) return "undecided: needs two seeds";
  if (difference.mean == 0 && difference.standard_error == 0) return "identical to " + baseline;
  const double low = difference.mean - difference.half_interval(), high = difference.mean + difference.half_interval();
  if (!max_difference) {
    if (low <= 0 && high >= 0) return "no significant difference";
    return low > 0 ? "significantly higher" : "significantly lower";
  }
  const std::string limit = str(shortest(*max_difference), " %");
  if (*max_difference == 0) return "not identical to " + baseline;
  if (std::max(-low, high) <= *max_difference) return "within " + limit;
  if (low > *max_difference || high < -*max_difference) return "beyond " + limit;
  return str("undecided whether within ", limit, ": needs more seeds");
}

std::string verdict(const QualityComparison& comparison, const ComparedVariant& variant) {
  if (const std::vector<i64> seeds = failed_seeds(comparison, variant.name); !seeds.empty())
    return str("failed with seeds ", seeds);
  if (variant.name == comparison.baseline().name) return "baseline";
  const std::vector<double> differences = comparison.differences(variant.name);
  if (differences.empty()) return "no finished pair of runs";
  return verdict_on(estimate_mean(differences), variant.max_difference, comparison.baseline().name);
}

std::vector<std::string> table_row(const QualityComparison& comparison, const ComparedVariant& variant) {
  std::vector<double> losses;
  for (const QualityRun& run : comparison.runs)
    if (run.variant == variant.name && run.failure.empty()) losses.push_back(run.loss());
  std::vector<std::string> row{variant.name, str(losses.size()),
                               losses.empty() ? "" : fixed(estimate_mean(losses).mean, 4)};
  const std::vector<double> differences = comparison.differences(variant.name);
  if (variant.name != comparison.baseline().name && !differences.empty()) {
    const MeanEstimate d = estimate_mean(differences);
    row.push_back(signed_percent(d.mean));
    row.push_back(d.count < 2 ? "" : fixed(d.standard_error, 3) + " %");
    row.push_back(d.count < 2 ? ""
                              : str(signed_percent(d.mean - d.half_interval()), " to ",
                                    signed_percent(d.mean + d.half_interval())));
  } else {
    row.insert(row.end(), 3, "");
  }
  row.push_back(verdict(comparison, variant));
  return row;
}

}  // namespace

double percent_difference(double loss, double base) {
  return 100 * (loss / base - 1);
}

std::string signed_percent(double value) {
  return str(value < 0 ? "" : "+", fixed(value, 3), " %");
}

const QualityRun* QualityComparison::find(const std::string& variant, i64 seed) const {
  const auto found = std::ranges::find_if(
      runs, [&](const QualityRun& run) { return run.variant == variant && run.seed == seed && run.failure.empty(); });
  return found == runs.end() ? nullptr : &*found;
}

std::vector<double> QualityComparison::differences(const std::string& variant, std::optional<i64> iteration) const {
  const auto loss_of = [&](const QualityRun& run) -> std::optional<double> {
    if (!iteration) return run.loss();
    const auto point = std::ranges::find(run.curve, *iteration, &HeldOutLoss::iteration);
    return point == run.curve.end() ? std::nullopt : std::optional(point->loss);
  };
  std::vector<double> differences;
  for (const QualityRun& run : runs) {
    const QualityRun* base = run.variant == variant && run.failure.empty() ? find(baseline().name, run.seed) : nullptr;
    if (base == nullptr) continue;
    const std::optional<double> loss = loss_of(run), base_loss = loss_of(*base);
    if (loss && base_loss) differences.push_back(percent_difference(*loss, *base_loss));
  }
  return differences;
}

std::string quality_table(const QualityComparison& comparison) {
  std::vector<std::vector<std::string>> rows{
      {"variant", "seeds", "loss", "difference", "std. error", "95 % interval", "verdict"}};
  for (const ComparedVariant& variant : comparison.variants) rows.push_back(table_row(comparison, variant));
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      std::size_t width = 0;
      for (const auto& other : rows) width = std::max(width, other[column].size());
      if (column == 0)
        line += pad_right(row[column], width);
      else
        line += "  " + (column + 1 == row.size() ? row[column] : pad_left(row[column], width));
    }
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

namespace {

constexpr std::array<const char*, 8> kColors{"#1d4ed8", "#c2410c", "#15803d", "#7e22ce",
                                             "#0e7490", "#b45309", "#be185d", "#4d7c0f"};

/// Mean difference of a variant after some iterations.
struct ChartPoint {
  i64 iteration = 0;
  double mean = 0, error = 0;  ///< in percent; `error` is two standard errors
};

/// Line of a variant in the chart.
struct ChartLine {
  std::string name;
  std::string color;
  std::vector<ChartPoint> points;
};

/// Returns the points with at least two seeds at which all seeds of the variant were evaluated.
std::vector<ChartPoint> chart_points(const QualityComparison& comparison, const std::string& variant) {
  std::set<i64> iterations;
  for (const QualityRun& run : comparison.runs)
    if (run.variant == variant)
      for (const HeldOutLoss& point : run.curve) iterations.insert(point.iteration);
  const std::size_t seeds = comparison.differences(variant).size();
  std::vector<ChartPoint> points;
  for (const i64 iteration : iterations) {
    const std::vector<double> differences = comparison.differences(variant, iteration);
    if (differences.size() < std::max<std::size_t>(seeds, 2)) continue;
    const MeanEstimate d = estimate_mean(differences);
    points.push_back({iteration, d.mean, 2 * d.standard_error});
  }
  return points;
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that divides `range` into at most `count` steps.
double nice_step(double range, int count) {
  const double min_step = range / count, power = std::pow(10, std::floor(std::log10(min_step)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= min_step * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

/// Plot area with linear axes.
struct PlotArea {
  static constexpr double kLeft = 70, kTop = 48, kWidth = 520, kHeight = 260;
  double min_x, max_x, min_y, max_y;

  double x(i64 iteration) const {
    return kLeft + (static_cast<double>(iteration) - min_x) / std::max(1.0, max_x - min_x) * kWidth;
  }
  double y(double value) const { return kTop + kHeight - (value - min_y) / (max_y - min_y) * kHeight; }
};

PlotArea plot_area(const std::vector<ChartLine>& lines) {
  PlotArea area{.min_x = INFINITY, .max_x = -INFINITY, .min_y = 0, .max_y = 0};
  for (const ChartLine& line : lines) {
    for (const ChartPoint& point : line.points) {
      area.min_x = std::min(area.min_x, static_cast<double>(point.iteration));
      area.max_x = std::max(area.max_x, static_cast<double>(point.iteration));
      area.min_y = std::min(area.min_y, point.mean - point.error);
      area.max_y = std::max(area.max_y, point.mean + point.error);
    }
  }
  if (area.min_x > area.max_x) area.min_x = 0, area.max_x = 1;  // without points
  if (area.min_y == area.max_y) area.min_y = -0.1, area.max_y = 0.1;
  return area;
}

std::string axes(const PlotArea& area) {
  std::string svg;
  const auto coordinate = [](double value) { return fixed(value, 1); };
  const double step = nice_step(area.max_y - area.min_y, 6);
  const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  for (double k = std::ceil(area.min_y / step - 1e-9); k * step <= area.max_y * (1 + 1e-9) + 1e-12; ++k) {
    const double y = area.y(k * step);
    svg += svg_line(str("M", coordinate(PlotArea::kLeft), " ", coordinate(y), "h", coordinate(PlotArea::kWidth)),
                    k == 0 ? "#666" : "#ddd");
    svg += svg_text(PlotArea::kLeft - 6, y + 4, "end", fixed(k * step, digits));
  }
  const double bottom = PlotArea::kTop + PlotArea::kHeight,
               ticks = nice_step(std::max(1.0, area.max_x - area.min_x), 8);
  for (double k = std::ceil(area.min_x / ticks); k * ticks <= area.max_x; ++k) {
    const auto iteration = static_cast<i64>(k * ticks);
    svg += svg_text(area.x(iteration), bottom + 18, "middle", str(iteration));
  }
  return svg + svg_text(PlotArea::kLeft + PlotArea::kWidth / 2, bottom + 36, "middle", "iteration");
}

std::string draw_line(const ChartLine& line, const PlotArea& area) {
  const auto at = [&](const ChartPoint& point, double value) {
    return str(fixed(area.x(point.iteration), 1), " ", fixed(area.y(value), 1));
  };
  std::string path, upper, lower;
  for (const ChartPoint& point : line.points) {
    path += str(path.empty() ? "M" : "L", at(point, point.mean));
    upper += str(upper.empty() ? "M" : "L", at(point, point.mean + point.error));
    lower = str("L", at(point, point.mean - point.error)) + lower;
  }
  return str("<path d=\"", upper, lower, "Z\" fill=\"", line.color, "\" fill-opacity=\"0.12\"/>\n") +
         svg_line(path, line.color, "stroke-width=\"2\"");
}

}  // namespace

std::string quality_chart(const QualityComparison& comparison, const std::string& title) {
  std::vector<ChartLine> lines;
  for (std::size_t i = 1; i < comparison.variants.size(); ++i) {
    const std::string& name = comparison.variants[i].name;
    lines.push_back({name, kColors[(i - 1) % kColors.size()], chart_points(comparison, name)});
  }
  const PlotArea area = plot_area(lines);
  std::string svg = svg_text(PlotArea::kLeft, 20, "start", title);
  svg += svg_text(PlotArea::kLeft, 38, "start",
                  str("difference of the held-out loss from ", comparison.baseline().name,
                      " in percent; bands: two standard errors"));
  svg += axes(area);
  constexpr double kLegend = PlotArea::kLeft + PlotArea::kWidth + 20;
  double y = PlotArea::kTop + 8;
  for (const ChartLine& line : lines) {
    if (!line.points.empty()) svg += draw_line(line, area);
    svg += svg_line(str("M", fixed(kLegend, 1), " ", fixed(y, 1), "h16"), line.color, "stroke-width=\"2\"") +
           svg_text(kLegend + 22, y + 4, "start", line.name);
    y += 18;
  }
  return svg_document(760, std::max(PlotArea::kTop + PlotArea::kHeight + 50, y), svg);
}

}  // namespace mcpp
