// Timing of collectives and messages against those of MPI itself, in turn in the same run.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

struct CommTiming {
  i64 smallest = 1 << 10;  ///< bytes of the whole tensor; each size is four times the last
  i64 largest = 64 << 20;
  int rounds = 5;                            ///< turns of each side
  int repeats = 7;                           ///< timed runs in a turn, after one that warms the caches and is not timed
  std::vector<std::string> operations = {};  ///< of comm_operations(); none: all
};

/// The names of what is timed.
std::vector<std::string> comm_operations();

/// A group and where its tensors live.
struct CommSide {
  Communicator& group;
  Device& device;
};

/// Medians over all turns; a run takes as long as on its slowest rank.
struct CommRow {
  std::string_view operation;
  i64 bytes = 0;  ///< of the whole tensor: what an all-reduce sums, what an all-gather ends with, a message
  double seconds = 0;
  double baseline_seconds = 0;

  double ratio() const { return baseline_seconds / seconds; }  ///< how often ours is done while the baseline is once
  double bandwidth() const { return static_cast<double>(bytes) / seconds; }  ///< bytes per second
};

/// All collectives on fp32, and messages there and back between the first and the last rank, which are on different
/// machines where there are several; half of their time counts. Both groups have the same ranks, at least 2; all of
/// them call it and get the same rows.
std::vector<CommRow> bench_comm(CommSide ours, CommSide baseline, const CommTiming& timing);

/// Aligned text, one line a row.
std::string comm_table(const std::vector<CommRow>& rows);

}  // namespace mcpp
