// Plans as text.
#pragma once
#include "plan/deadline.h"
#include "plan/recipe.h"
#include "plan/scaling.h"
#include "plan/search.h"
#include "plan/what_helps.h"

namespace mcpp {

std::string recipe_text(const std::vector<RecipeStep>& recipe);
/// The best layouts, and why others are not. `job`: with the best layout.
std::string search_text(const Job& job, const SearchResult& result);
/// Where the time of a step goes.
std::string step_text(const Job& job, const StepTime& time);
/// The same as a JSON object, in seconds, with the bytes of the rank that needs most.
std::string step_json(const Job& job, const StepTime& time, double memory_bytes);
std::string gains_text(const std::vector<Gain>& gains);
std::string failures_text(const FailureLoss& loss);
std::string deadline_text(const Job& job, const std::optional<TimedWorld>& found, const Deadline& deadline);
std::string scaling_text(const Job& job, const std::vector<ScalingPoint>& points, bool is_weak);

}  // namespace mcpp
