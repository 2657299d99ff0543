// Command megatron_cpp config: checks a configuration and prints it with all values resolved.
#include "megatron_cpp/config/config.h"

#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/config/stages.h"

namespace mcpp {
namespace {

struct ConfigOptions {
  std::string config;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "configuration file in TOML");
  }
};

}  // namespace

ExitCode config_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp config",
                    .summary = "Checks a configuration and prints every key with its value, as TOML.",
                    .positional = {"config"},
                    .required = {"config"}};
  ConfigOptions options;
  if (const std::optional<Config> config = read_config_and_options(args, usage, options, log)) {
    for (const Config& stage : training_configs(*config)) check_layout(stage, kAnyWorld);
    log.info(print_config(without_unused_keys(*config)));
  }
  return ExitCode::Done;
}

}  // namespace mcpp
