// Text and JSON output of plans.
#pragma once
#include <vector>

#include "plan/rule_of_thumb.h"
#include "plan/scaling/goodput.h"
#include "plan/scaling/scaling.h"
#include "plan/scaling/training_cost.h"
#include "plan/search.h"
#include "plan/step/step_time.h"

namespace mcpp {

/// Named component of a step's time.
struct StepPart {
  const char* key;    ///< key in JSON
  const char* name;   ///< name in tables
  const char* color;  ///< CSS color in drawings
  double seconds;
};

/// Returns all components in a fixed order, including those that take zero seconds. They add up to the step.
std::vector<StepPart> step_parts(const StepTime& time);
/// Returns the components of one pass of a microbatch.
std::vector<StepPart> pass_parts(const PassTime& time);

/// Names the rules that the result of the search does not follow, with the reason.
std::string recipe_text(const std::vector<RuleOfThumb>& recipe, const SearchResult& result);
/// Returns a description of the best layouts, and of the reasons why others are worse. `input` has the best layout.
std::string search_text(const PredictionInput& input, const SearchResult& result);
/// Returns the breakdown of a step.
std::string step_text(const PredictionInput& input, const StepTime& time);
/// Memory of the rank with the highest memory use.
struct PredictedMemory {
  double bytes = 0;
  bool fits = true;
};
/// Returns the breakdown of a step as a JSON object, in seconds, with the cost of a run if requested; infinite
/// hours are null.
std::string step_json(const PredictionInput& input, const StepTime& time, const PredictedMemory& memory,
                      const std::optional<TrainingCost>& cost);
std::string gains_text(const std::vector<Speedup>& gains);
std::string failures_text(const FailureLoss& loss);
/// Returns a table of the points, which marks the best interval of each kind.
std::string goodput_text(const std::vector<GoodputPoint>& points);
/// Returns text like "take 30.2 hours, 25.1K device hours, at 2.00 each 50.2K"; a price of 0 is omitted.
std::string cost_text(const TrainingCost& cost, double price);
/// Returns a description of the result or, without a trailing newline, the reason why there is none.
std::string deadline_text(const PredictionInput& input, const MinDevices& devices, const Deadline& deadline);
/// Returns a table of the points. `tokens` is the number of tokens to which their costs refer.
std::string scaling_text(const PredictionInput& input, const std::vector<ScalingPoint>& points, bool is_weak,
                         double tokens);
/// Returns a description of best_point().
std::string best_point_text(const ScalingPoint& best, Objective objective, const Deadline& training);

}  // namespace mcpp
