// megatron_cpp plan calibrate: measures this machine for the planner.
#include "megatron_cpp/bench/calibrate.h"
#include "megatron_cpp/commands/plan.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {
namespace {

struct CalibrateOptions {
  std::string out;
  i64 num_threads = 0;
  std::string offload_folder;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("out", self.out, "file for what it finds, which plan --hardware=FILE takes");
    visit("num_threads", self.num_threads, "threads of a rank, as trainings are to have; 0 = all usable cores",
          between(0, 4096));
    visit("offload_folder", self.offload_folder,
          "folder on the disk that trainings are to keep numbers on, which is measured, too; \"\" = none is");
  }
};

/// Any that these ranks can run.
Config config_for(const CalibrateOptions& options, int ranks) {
  Config config;
  config.training.global_batch_size = ranks * config.training.micro_batch_size;
  config.device.num_threads = options.num_threads;
  return config;
}

void check_out(const std::string& out) {
  check_input(out.ends_with(".toml"), "--out=", out, ": must end in .toml, so that --hardware takes it as a file");
  const std::string problem = output_problem("--out", out);
  check_input(problem.empty(), problem);
}

std::string file_text(const Hardware& hardware, int ranks) {
  return str("# Measured by `megatron_cpp plan calibrate` on ", ranks, ranks == 1 ? " rank" : " ranks",
             " of this machine: what each of them reaches while all of\n# them work. For more machines [links] needs ",
             "another tier.\n\n", print_hardware(hardware));
}

}  // namespace

ExitCode plan_calibrate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "mpirun -n N megatron_cpp plan calibrate",
                    .summary =
                        "Measures products, attention, other operations and communication of N ranks of this "
                        "machine (a few minutes), and writes a hardware file.",
                    .required = {"out"}};
  CalibrateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const int ranks = world.ranks.size();
  check_out(options.out);
  check_input(world.ranks_of_node().size() == ranks, "plan calibrate: measures one machine, and ",
              ranks - world.ranks_of_node().size(), " of the ", ranks,
              " ranks are on others; start it on one, and add a tier for the links between them to the file");
  const Session session = initialize(config_for(options, ranks), world);
  const int cores = world.cores > 0 ? world.cores : static_cast<const CpuDevice&>(*session.device).threads();
  const Hardware hardware = calibrate(*session.device, world.ranks, cores, {.disk = options.offload_folder});
  if (world.ranks.rank() != 0) return ExitCode::Done;
  write_file_atomic(options.out, file_text(hardware, ranks));
  const DeviceRates& d = hardware.device;
  log.info(str(d.name, ", ", ranks, ranks == 1 ? " rank of " : " ranks of ", d.cores, d.cores == 1 ? " core" : " cores",
               ": products ", fixed(1e3 * d.bf16_attained, 0), " GFLOP/s in bf16, ", fixed(1e3 * d.fp32_attained, 0),
               " in fp32; memory ", fixed(d.memory_attained, 1), " GB/s; links ", fixed(hardware.links.bandwidth[0], 1),
               " GB/s, ", fixed(hardware.links.latency[0], 1), " us",
               options.offload_folder.empty() ? "" : str("; disk ", fixed(hardware.host.nvme_bandwidth, 2), " GB/s"),
               "\nwritten to ", options.out));
  return ExitCode::Done;
}

}  // namespace mcpp
