// Benchmark of collectives and messages, alternating with MPI's own.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

// MPI's own collectives behind the Communicator interface, as a benchmark baseline.

/// Creates a group of all ranks of an MPI session. Every operation is one blocking MPI call on the unmodified tensors:
/// sums are fp32 in MPI's order, a send may block on its receive, and tensors are limited to 2^31 - 1 bytes.
std::unique_ptr<Communicator> make_mpi_baseline();

struct CommTiming {
  i64 smallest = 1 << 10;  ///< bytes of the full tensor; each size is four times the previous one
  i64 largest = 64 << 20;
  int rounds = 5;                            ///< alternations between the sides
  int repeats = 7;                           ///< timed runs per alternation, after an untimed one that warms the caches
  std::vector<std::string> operations = {};  ///< subset of comm_operations(); empty = all
};

/// Returns the names of the benchmarked operations.
std::vector<std::string> comm_operations();

/// Group and the device of its tensors.
struct CommSide {
  Communicator& group;
  Device& device;
};

/// Medians over all alternations of the time on the slowest rank.
struct CommRow {
  std::string_view operation;
  i64 bytes = 0;  ///< size of the full tensor: input of an all-reduce, output of an all-gather, or message
  double seconds = 0;
  double baseline_seconds = 0;

  double ratio() const { return baseline_seconds / seconds; }                ///< speedup over the baseline
  double bandwidth() const { return static_cast<double>(bytes) / seconds; }  ///< bytes per second
};

/// Times all collectives on fp32, and half of a round trip between the first and the last rank, which are on different
/// nodes if there are several. Both groups must have the same ranks, at least 2. Collective; all ranks return the same
/// rows.
std::vector<CommRow> bench_comm(CommSide ours, CommSide baseline, const CommTiming& timing);

/// Formats the rows as aligned text, one per line.
std::string comm_table(const std::vector<CommRow>& rows);

}  // namespace mcpp
