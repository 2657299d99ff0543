// Command megatron_cpp bench coordinate_check.
#include <algorithm>

#include "base/file.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/bench/coordinate_check.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"

namespace mcpp {
namespace {

struct CoordinateCheckOptions {
  std::string config;
  std::vector<i64> widths;
  i64 steps = 5;
  i64 seeds = 2;
  std::string svg;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML");
    visit("widths", self.widths, "values of hidden_size; [] = 1, 2 and 4 times model.hidden_size", between(1, 1e6));
    visit("steps", self.steps, "training steps", between(1, 1000));
    visit("seeds", self.seeds, "initializations over which to average", between(1, 100));
    visit("svg", self.svg, "SVG file to write a chart to");
  }
};

}  // namespace

ExitCode bench_coordinate_check_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp bench coordinate_check",
                    .summary =
                        "Trains models of several widths for a few steps and prints the mean absolute activations and "
                        "logits, and their\nchanges. With use_mup they do not depend on the width.",
                    .positional = {"config"},
                    .required = {"config"}};
  CoordinateCheckOptions options;
  std::optional<Config> config = read_config_and_options(args, usage, options, log);
  if (!config) return ExitCode::Done;
  check_input(world.ranks.size() == 1, "bench coordinate_check runs in one process; start it without mpirun");
  const Layout& layout = config->parallel;
  check_input(layout.ranks_per_sample() == 1 && layout.chunks == 1,
              "bench coordinate_check runs on one rank; remove the sizes of [parallel]");
  resolve_vocabulary(*config, log);
  std::vector<i64> widths = options.widths;
  if (widths.empty())
    for (const i64 factor : {1, 2, 4}) widths.push_back(factor * config->model.hidden_size);
  std::ranges::sort(widths);
  const bool has_copies = std::ranges::adjacent_find(widths) != widths.end();
  check_input(widths.size() >= 2 && !has_copies, "--widths: must be at least two different widths");
  const CoordinateCheck check = run_coordinate_check(*config, widths, options.steps, options.seeds, world);
  const std::string title =
      str(config->model.mup.is_used ? "maximal update parametrization" : "standard parametrization", ", ",
          options.steps, " steps at learning rate ", config->optimizer.lr);
  log.info(title + "\n\n" + coordinate_table(check));
  if (!options.svg.empty()) write_file_atomic(options.svg, coordinate_chart(check, title));
  return ExitCode::Done;
}

}  // namespace mcpp
