// Command megatron_cpp bench and its subcommands.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/initialize.h"
#include "parallel/state.h"

namespace mcpp {

ExitCode bench_command(Arguments args, Log& log, const World& world);
ExitCode bench_attention_command(Arguments args, Log& log, const World& world);
ExitCode bench_comm_command(Arguments args, Log& log, const World& world);
ExitCode bench_checkpoint_command(Arguments args, Log& log, const World& world);
ExitCode bench_groups_command(Arguments args, Log& log, const World& world);
ExitCode bench_object_store_command(Arguments args, Log& log, const World& world);
ExitCode bench_coordinate_check_command(Arguments args, Log& log, const World& world);
ExitCode bench_quality_command(Arguments args, Log& log, const World& world);

// Benchmark of collectives and messages, alternating between this program and MPI.

struct CommTiming {
  i64 smallest = 1 << 10;  ///< bytes of the full tensor; each size is four times the previous one
  i64 largest = 64 << 20;
  int rounds = 5;                            ///< alternations between the groups
  int repeats = 7;                           ///< timed runs per alternation, after an untimed run that warms the caches
  std::vector<std::string> operations = {};  ///< empty = all
};

/// Group of ranks and the device of their tensors.
struct BenchGroup {
  Communicator& group;
  Device& device;
};

/// Result for one operation and size. Times are medians over all alternations of the time of the slowest rank.
struct CommRow {
  std::string_view operation;
  i64 bytes = 0;  ///< size of the full tensor: input of an all-reduce, output of an all-gather, or message
  double seconds = 0;
  double baseline_seconds = 0;

  double ratio() const { return baseline_seconds / seconds; }                ///< speedup over the baseline
  double bandwidth() const { return static_cast<double>(bytes) / seconds; }  ///< bytes per second
};

/// Measures the time of all collectives on fp32 tensors, and half of the round trip between the first and the last
/// rank, which are on different nodes if there are several nodes. Both groups must consist of the same ranks, at least
/// 2. Collective. All ranks return the same rows.
std::vector<CommRow> bench_comm(BenchGroup ours, BenchGroup baseline, const CommTiming& timing);

/// Formats the rows as aligned text, one per line.
std::string comm_table(const std::vector<CommRow>& rows);

// Benchmark of the creation of a layout's process groups. The cost grows with the number of ranks.

/// Costs of group creation; each is the maximum over ranks.
struct GroupCosts {
  int ranks = 0;           ///< size of the world
  i64 groups = 0;          ///< groups of two or more ranks that the rank belongs to
  i64 members = 0;         ///< total size of these groups; each group stores a list of its ranks
  double make_s = 0;       ///< time until all ranks have created their groups
  double first_use_s = 0;  ///< time of a one-element sum in each group that is used for sums
  i64 own_bytes = 0;       ///< increase of the private memory of the process; 0 if unknown
};

/// Runs the benchmark. Collective over `world`. All ranks return the same result.
GroupCosts bench_groups(Communicator& world, const Layout& layout);

}  // namespace mcpp
