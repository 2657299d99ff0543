// Command megatron_cpp plan calibrate: measures this host for the planner.
#include "base/file.h"
#include "base/strings.h"
#include "megatron_cpp/bench/calibrate.h"
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/setup/initialize.h"
#include "tensor/on_device.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

/// Device to be measured. Auto selects the processors if the program has no CUDA support.
enum class CalibrationTarget : u8 { Auto, Cpu, Cuda };

}  // namespace

template <>
struct EnumNames<CalibrationTarget> {
  static constexpr std::array<std::string_view, 3> value{"auto", "cpu", "cuda"};
};

namespace {

struct CalibrateOptions {
  std::string out;
  CalibrationTarget device = CalibrationTarget::Auto;
  bool add = false;
  i64 num_threads = 0;
  i64 rounds = CalibrationSizes().rounds;
  std::string offload_folder;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("out", self.out, "file for the result, for plan --hardware=FILE");
    visit("device", self.device,
          "device to measure: cpu = the processors of this host; cuda is not supported; auto = cpu if the program was "
          "built without CUDA");
    visit("add", self.add,
          "keep the file's measurements of this host for other numbers of ranks; plan selects the ones for its number "
          "of ranks");
    visit("num_threads", self.num_threads, "threads of a rank, as in later runs; 0 = all usable cores",
          between(0, 4096));
    visit("rounds", self.rounds, "number of times that all measurements are repeated; the median of each is used",
          between(1, 100));
    visit("offload_folder", self.offload_folder,
          "folder on the disk that later runs offload to, for measuring that disk; \"\" = none");
  }
};

/// Returns any configuration that these ranks can run.
Config make_config(const CalibrateOptions& options, int ranks) {
  Config config;
  config.training.global_batch_size = ranks * config.training.micro_batch_size;
  config.device.num_threads = options.num_threads;
  return config;
}

/// Rejects GPUs: users who train on them must not plan with the rates of the host's processors.
void check_device(CalibrationTarget device) {
  const bool is_cpu = device == CalibrationTarget::Cpu || (device == CalibrationTarget::Auto && !kWithCuda);
  check_input(
      is_cpu, "--device=", enum_name(device), ": plan calibrate measures CPUs, not GPUs; for a GPU copy the ",
      "nearest file of configs/hardware/, enter the results of bench gemm and bench ops, and correct it by a short ",
      "run with plan --from_run --emit_hardware (docs/planning.md)",
      device == CalibrationTarget::Auto ? "; --device=cpu measures the CPUs of this host" : "");
}

void check_out(const std::string& out) {
  check_input(out.ends_with(".toml"), "--out=", out, ": must end in .toml, so that --hardware recognizes it as a file");
  const std::string problem = output_problem("--out", out);
  check_input(problem.empty(), problem);
}

/// Returns the measurements that --add preserves: measurements of the same processor for other numbers of ranks. Throws
/// BadInput if `out` describes anything else.
HardwareKind load_existing(const CalibrateOptions& options, const std::string& device, int cores) {
  std::error_code error;
  if (!options.add || !std::filesystem::exists(options.out, error)) return {};
  HardwareKind existing = parse_hardware(read_text_file(options.out), options.out);
  if (auto any = existing.by_ranks.extract(HardwareKind::kAnyRanks)) {
    any.key() = any.mapped().links.ranks.back();
    existing.by_ranks.insert(std::move(any));
  }
  const std::string refused = str("--add: ", options.out, ": ");
  for (const auto& [ranks, hardware] : existing.by_ranks) {
    check_input(hardware.measured_bf16.has() && hardware.measured_fp32.has(), refused,
                "was not measured by plan calibrate; set a different --out");
    check_input(hardware.device.name == device && hardware.host.cores == cores, refused, "describes ",
                hardware.device.name, " with ", hardware.host.cores, " cores, but this host is ", device, " with ",
                cores, " cores; set a different --out");
  }
  return existing;
}

std::string file_text(const HardwareKind& kind) {
  std::vector<std::string> rank_counts;
  for (const auto& [ranks, hardware] : kind.by_ranks)
    rank_counts.push_back(std::to_string(ranks > 0 ? ranks : hardware.links.ranks.back()));
  return str("# Measured by `megatron_cpp plan calibrate` on ", join(rank_counts, ", on "),
             rank_counts == std::vector<std::string>{"1"} ? " rank" : " ranks",
             " of this host: what each rank reaches while all\n# ranks are busy. For more hosts [links] needs ",
             "one more tier.\n\n", print_hardware(kind));
}

}  // namespace

ExitCode plan_calibrate_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "mpirun -n N megatron_cpp plan calibrate",
                    .summary =
                        "Measures GEMMs, attention, other operations and communication of N ranks on this "
                        "host's processors (a few minutes), and writes a hardware file.",
                    .required = {"out"}};
  CalibrateOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  const int ranks = world.ranks.size();
  check_device(options.device);
  check_out(options.out);
  check_input(world.ranks_of_node().size() == ranks, "plan calibrate: measures one host, but ",
              ranks - world.ranks_of_node().size(), " of the ", ranks,
              " ranks are on others; start it on one, and add a tier for the links between them to the file");
  const Session session = initialize(make_config(options, ranks), world);
  const int cores = world.cores > 0 ? world.cores : static_cast<const CpuDevice&>(*session.device).threads();
  HardwareKind kind = load_existing(options, device_name(*session.device), cores);
  const CalibrationSizes sizes{.rounds = static_cast<int>(options.rounds), .disk = options.offload_folder};
  const Hardware hardware = calibrate(*session.device, world.ranks, cores, sizes);
  if (world.ranks.rank() != 0) return ExitCode::Done;
  kind.by_ranks[options.add ? ranks : HardwareKind::kAnyRanks] = hardware;
  write_file_atomic(options.out, file_text(kind));
  const DeviceRates& d = hardware.device;
  log.info(str(d.name, ", ", ranks, ranks == 1 ? " rank of " : " ranks of ", d.cores, d.cores == 1 ? " core" : " cores",
               ": GEMMs ", fixed(1e3 * d.bf16_attained, 0), " GFLOP/s in bf16, ", fixed(1e3 * d.fp32_attained, 0),
               " in fp32; memory ", fixed(d.memory_attained, 1), " GB/s; links ", fixed(hardware.links.bandwidth[0], 1),
               " GB/s, ", fixed(hardware.links.latency[0], 1), " us",
               options.offload_folder.empty() ? "" : str("; disk ", fixed(hardware.host.nvme_bandwidth, 2), " GB/s"),
               "\nwritten to ", options.out));
  return ExitCode::Done;
}

}  // namespace mcpp
