#include "megatron_cpp/commands/plan/plan_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <tuple>

namespace mcpp {
namespace {

/// Minimum for the hours between failures of a device; a run with less would not progress.
constexpr double kMinMtbfHours = 0.01;

constexpr const char* kDeadlineOption = "--deadline_hours";

/// Rejects options that request several different results, or a detail of a result that is not computed.
void check_answers(const PlanOptions& options, std::vector<std::string>& problems) {
  std::vector<std::string> instead;
  for (const auto& [is_requested, name] : {std::pair(options.predict, "--predict"),
                                           {!options.scale.empty(), "--scale"},
                                           {options.should_minimize_devices(), kDeadlineOption}})
    if (is_requested) instead.emplace_back(name);
  if (instead.size() > 1) problems.push_back(str(join(instead, " and "), ": exclude each other; pass only one"));
  if (instead.empty()) return;
  const bool has_page = options.predict;
  for (const auto& [is_requested, name] : {std::pair(options.explain, "--explain"),
                                           {!options.svg.empty(), "--svg"},
                                           {!options.emit.empty(), "--emit"},
                                           {!options.html.empty() && !has_page, "--html"}})
    if (is_requested)
      problems.push_back(
          str(name, ": needs the best layout for one number of ranks, which ", instead.front(), " does not compute"));
  if (options.world_size > 0 && !has_page && options.from_run.empty())
    problems.push_back(str("--world_size: is not used with ", instead.front(), ", which has its own numbers of ranks"));
}

/// Rejects limits of a search if there is no search.
void check_limits(const PlanOptions& options, std::vector<std::string>& problems) {
  if (!options.predict) return;
  for (const auto& [is_set, name] : {std::pair(options.tp > 0, "tp"),
                                     {options.cp > 0, "cp"},
                                     {options.pp > 0, "pp"},
                                     {options.ep > 0, "ep"},
                                     {options.micro_batch_size > 0, "micro_batch_size"},
                                     {options.allow_lossy_comm, "allow_lossy_comm"}})
    if (is_set)
      problems.push_back(str("--", name, ": limits a search, but --predict uses the configuration's own layout"));
  if (options.objective != Objective::Time)
    problems.push_back(str("--objective=", enum_name(options.objective),
                           ": applies to a search, but --predict uses the configuration's own layout"));
}

/// Checks that the objective has the options it needs.
void check_objective(const PlanOptions& options, std::vector<std::string>& problems) {
  const Deadline& d = options.deadline;
  if (options.objective == Objective::Deadline && (d.tokens == 0 || d.hours == 0))
    problems.emplace_back(
        "--objective=deadline: needs --tokens and --deadline_hours, the amount of training and the time limit");
  else if (d.hours > 0 && d.tokens == 0)
    problems.emplace_back("--deadline_hours: needs --tokens, the amount of training");
  if (options.predict || !options.scale.empty()) return;
  if (options.objective == Objective::DeviceHours)
    problems.emplace_back(
        "--objective=device_hours: compares numbers of ranks; for a single number the fastest layout costs least. Pass "
        "them as --scale=64,128,256, or use plan scale for all up to --world_size");
  if (options.objective == Objective::Memory && d.hours > 0)
    problems.emplace_back(
        "--deadline_hours: minimizes the number of devices, for which --objective=memory has no meaning; pass the "
        "numbers of ranks to choose from as --scale=64,128,256");
}

/// Checks options that only take effect together with another one.
void check_dependent_options(const PlanOptions& options, std::vector<std::string>& problems) {
  const Failures defaults;
  if (options.deadline.price > 0 && options.deadline.tokens == 0)
    problems.emplace_back("--price: applies only to --tokens");
  if (options.implementation != Implementation::MegatronCpp && !options.emit.empty())
    problems.emplace_back("--emit: writes a configuration for megatron_cpp; remove --implementation");
  if (options.json && !options.predict) problems.emplace_back("--json: applies only to --predict");
  if (!options.emit_hardware.empty() && options.from_run.empty())
    problems.emplace_back("--emit_hardware: applies only to --from_run, the run to adjust the hardware to");
  if (options.weak && options.scale.empty()) problems.emplace_back("--weak: applies only to --scale");
  if (options.failures.mtbf_hours > 0 && options.predict && options.deadline.tokens == 0 && !options.goodput)
    problems.emplace_back(
        "--mtbf_hours: with --predict applies only to training on --tokens and to --goodput; set one of them");
  if (options.goodput && options.failures.mtbf_hours == 0)
    problems.emplace_back("--goodput: needs --mtbf_hours, the mean time between failures of a device");
  if (options.goodput && (options.json || !options.scale.empty() || options.should_minimize_devices()))
    problems.emplace_back("--goodput: prints a table for one layout; remove --json, --scale and --deadline_hours");
  if (options.failures.mtbf_hours > 0) return;
  if (options.failures.save_seconds != defaults.save_seconds)
    problems.emplace_back("--save_seconds: applies only to --mtbf_hours");
  if (options.failures.restart_seconds != defaults.restart_seconds)
    problems.emplace_back("--restart_seconds: applies only to --mtbf_hours");
}

/// Returns why a new file cannot be created. It needs the extension that --hardware recognizes, and is never
/// overwritten because it may be the file passed to --hardware.
std::string new_file_problem(const std::string& option, const std::string& file) {
  std::error_code error;
  if (std::string problem = output_problem(option, file); !problem.empty()) return problem;
  if (!file.ends_with(".toml"))
    return str(option, "=", file, ": must end in .toml, so that --hardware recognizes it as a file");
  if (!std::filesystem::exists(file, error)) return "";
  return str(option, "=", file, ": already exists; set a new file, or remove it");
}

/// Word that a user may try instead of an option.
struct Hint {
  const char *word, *option;
};
constexpr Hint kHints[]{{"predict", "--predict"},         {"explain", "--explain"},
                        {"memory", "--objective=memory"}, {"deadline", "--tokens=1e12 --deadline_hours=720"},
                        {"search", "--world_size=64"},    {"emit", "--emit=run.toml"},
                        {"html", "--html=step.html"},     {"svg", "--svg=step.svg"},
                        {"compare", "--from_run=runs/a"}, {"from_run", "--from_run=runs/a"}};

}  // namespace

std::vector<i64> powers_of_two_up_to(i64 max_world_size) {
  std::vector<i64> worlds;
  for (i64 world = 1; world < max_world_size; world *= 2) worlds.push_back(world);
  worlds.push_back(max_world_size);
  return worlds;
}

std::string find_hint(std::span<const std::string> words) {
  std::error_code error;
  if (words.empty() || std::filesystem::exists(words.front(), error)) return "";
  const auto* hint = std::ranges::find(kHints, words.front(), &Hint::word);
  if (hint == std::end(kHints)) return "";
  return str("plan ", hint->word, ": is not a command; use an option, plan CONFIG ", hint->option);
}

std::string output_problem(const std::string& option, const std::string& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) return str(option, "=", file, ": is a folder");
  const Path folder = Path(file).has_parent_path() ? Path(file).parent_path() : Path(".");
  if (!std::filesystem::is_directory(folder, error))
    return str(option, "=", file, ": the folder ", folder.string(), " does not exist");
  return "";
}

void check_options(const PlanOptions& options) {
  std::vector<std::string> problems;
  if (options.world_size == 0 && options.scale.empty() && !options.should_minimize_devices() &&
      options.from_run.empty())
    problems.emplace_back(
        "--world_size: is missing: number of ranks, one per device; or set --scale=64,128,256, or --tokens and "
        "--deadline_hours");
  if (options.predict && options.world_size == 0 && options.from_run.empty())
    problems.emplace_back("--predict: needs --world_size, the number of ranks of the configuration's layout");
  for (const auto& [name, value, minimum] : {std::tuple("mtbf_hours", options.failures.mtbf_hours, kMinMtbfHours),
                                             {"tokens", options.deadline.tokens, 1.0},
                                             {"document_tokens", options.document_tokens, 1.0}})
    if (value > 0 && value < minimum)
      problems.push_back(str("--", name, "=", value, ": must be 0 or at least ", minimum));
  check_objective(options, problems);
  check_dependent_options(options, problems);
  check_answers(options, problems);
  check_limits(options, problems);
  for (const auto& [option, file] :
       {std::pair("--svg", options.svg), {"--html", options.html}, {"--emit", options.emit}})
    if (!file.empty())
      if (std::string problem = output_problem(option, file); !problem.empty()) problems.push_back(std::move(problem));
  if (!options.emit_hardware.empty() && options.emit == options.emit_hardware)
    problems.emplace_back("--emit and --emit_hardware: name the same file");
  if (!options.emit_hardware.empty())
    if (std::string problem = new_file_problem("--emit_hardware", options.emit_hardware); !problem.empty())
      problems.push_back(std::move(problem));
  check_input(problems.empty(), join(problems, "\n"));
}

}  // namespace mcpp
