// Traces of all ranks in one file in the Trace Event Format of Chrome, which ui.perfetto.dev and chrome://tracing show.
#pragma once
#include <map>
#include <string>
#include <utility>

#include "base/file.h"
#include "comm/communicator.h"
#include "megatron_cpp/logging/clock_offset.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Bytes by the name of a module and of a class of memory.
using BytesByModule = std::map<std::string, std::map<std::string, double>>;

/// What one rank has to tell of a part of a run.
struct RankTrace {
  std::string name;  ///< of the rank, as viewers show it
  Profiler::Trace trace;
  ClockOffset before, after;              ///< the trace lies between them
  std::map<std::string, double> figures;  ///< that hold for the rank in that time
  BytesByModule modules = {};             ///< of its memory, what each module of its part of the model takes
};

/// The ranges as objects of the array "traceEvents", one a line, with commas between; rank r is process r. Microseconds
/// since `before.reference`.
std::string trace_events(const RankTrace& trace, int rank);

/// Rank 0 writes what all ranks of `world`, which carries tensors in host memory, have to tell; "otherData" has their
/// figures, by rank, and what is in `facts`, a JSON object. Returns why it could not be written, on rank 0, or "".
std::string write_trace_file(const Path& path, const RankTrace& mine, const std::string& facts, Communicator& world);

}  // namespace mcpp
