// Plans as text.
#pragma once
#include "plan/recipe.h"
#include "plan/search.h"
#include "plan/worlds/deadline.h"
#include "plan/worlds/scaling.h"
#include "plan/worlds/training_cost.h"

namespace mcpp {

std::string recipe_text(const std::vector<RecipeStep>& recipe);
/// The best layouts, and why others are not. `job`: with the best layout.
std::string search_text(const Job& job, const SearchResult& result);
/// Where the time of a step goes.
std::string step_text(const Job& job, const StepTime& time);
/// Of the rank that needs most.
struct PredictedMemory {
  double bytes = 0;
  bool fits = true;
};
/// The same as a JSON object, in seconds, with what a training costs that was asked for; hours without end are null.
std::string step_json(const Job& job, const StepTime& time, const PredictedMemory& memory,
                      const std::optional<TrainingCost>& cost);
std::string gains_text(const std::vector<Gain>& gains);
std::string failures_text(const FailureLoss& loss);
/// "take 30.2 hours, 25.1K device hours, at 2.00 each 50.2K"; the price of 0 is left out.
std::string cost_text(const TrainingCost& cost, double price);
/// What was found; or, without an end of line, why nothing is.
std::string deadline_text(const Job& job, const FewestDevices& devices, const Deadline& deadline);
/// `tokens`: what the points' costs are of.
std::string scaling_text(const Job& job, const std::vector<ScalingPoint>& points, bool is_weak, double tokens);
/// Of best_point().
std::string best_point_text(const ScalingPoint& best, Objective objective, const Deadline& training);

}  // namespace mcpp
