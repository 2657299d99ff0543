// Stream capture and CUDA graphs. A capture records the operations of its streams with copies of their arguments. A
// launch queues them again with the same waits: operations of the capture's first stream on the stream of the launch,
// operations of every other stream on a stream that the graph owns. Every launch is therefore checked for races.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "tests/cuda_simulator/capture.h"
#include "tests/cuda_simulator/memory.h"
#include "tests/cuda_simulator/runtime.h"

namespace mcpp::cuda_simulator {

/// Operation of a capture. It follows the previous node of its branch and the nodes in `waits`.
struct CapturedNode {
  std::size_t branch = 0;
  Operation operation;
  std::set<std::size_t> waits = {};
};

struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = {};
  int device = 0;
  cudaError_t error = cudaSuccess;
  std::vector<CapturedNode> nodes = {};
  struct Branch {
    cudaStream_t stream;
    std::set<std::size_t> waits = {};  // nodes that the next node waits for
    std::size_t last = kNone;          // index of the last node
  };
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<Branch> branches = {};  // one per stream; the first stream is the origin

  Branch& branch_of(cudaStream_t stream) { return *std::ranges::find(branches, stream, &Branch::stream); }
  std::size_t add(cudaStream_t stream, Operation operation) {
    Branch& branch = branch_of(stream);
    nodes.push_back(
        {static_cast<std::size_t>(&branch - branches.data()), std::move(operation), std::exchange(branch.waits, {})});
    return branch.last = nodes.size() - 1;
  }
};

namespace {

/// Captures that have begun and not ended.
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const only = new std::vector<std::shared_ptr<Capture>>;
  return *only;
}

/// Returns true if every node, and every node that a branch waits for, precedes the end of the first branch.
bool is_joined(const Capture& capture) {
  std::set<std::size_t> reached;
  std::vector<std::size_t> open(capture.branches[0].waits.begin(), capture.branches[0].waits.end());
  if (capture.branches[0].last != Capture::kNone) open.push_back(capture.branches[0].last);
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), capture.nodes[node].waits.begin(), capture.nodes[node].waits.end());
    for (std::size_t i = node; i-- > 0;) {
      if (capture.nodes[i].branch != capture.nodes[node].branch) continue;
      open.push_back(i);
      break;
    }
  }
  return reached.size() == capture.nodes.size();
}

}  // namespace

bool is_capturing(cudaStream_t stream) {
  return stream && stream->capture;
}

cudaError_t invalidate_capture(cudaStream_t stream, cudaError_t error) {
  if (is_capturing(stream) && stream->capture->error == cudaSuccess)
    stream->capture->error = cudaErrorStreamCaptureInvalidated;
  return remember_error(error);
}

bool capture_operation(cudaStream_t stream, const Operation& operation) {
  if (!is_capturing(stream)) return false;
  if (operation.is_ready) report("%s: an operation that waits for others cannot be captured", operation.name.c_str());
  stream->capture->add(stream, operation);
  return true;
}

bool capture_event_record(cudaStream_t stream, const std::shared_ptr<EventState>& event) {
  event->capture.reset();
  if (!is_capturing(stream)) return false;
  event->capture = stream->capture;
  event->captured_node = stream->capture->add(stream, {.name = "cudaEventRecord", .run = nullptr});
  return true;
}

bool capture_event_wait(cudaStream_t stream, const std::shared_ptr<EventState>& event, cudaError_t& result) {
  const std::shared_ptr<Capture> captured = event->capture.lock();
  result = cudaSuccess;
  if (!captured && !is_capturing(stream)) return false;
  if (!captured) {
    result = invalidate_capture(stream, cudaErrorStreamCaptureIsolation);
  } else if (is_capturing(stream) && stream->capture != captured) {
    result = invalidate_capture(stream, cudaErrorStreamCaptureMerge);
  } else {
    if (!stream->capture) captured->branches.push_back({stream});
    stream->capture = captured;
    captured->branch_of(stream).waits.insert(event->captured_node);
  }
  return true;
}

cudaError_t check_not_capturing(cudaStream_t stream) {
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures()) {
    const bool is_own = capture->thread == std::this_thread::get_id();
    const bool waits_for_it = stream && stream->capture == capture;
    const bool is_prohibited =
        capture->mode == cudaStreamCaptureModeGlobal || (capture->mode == cudaStreamCaptureModeThreadLocal && is_own);
    if (!waits_for_it && !is_prohibited) continue;
    if (capture->error == cudaSuccess) capture->error = cudaErrorStreamCaptureInvalidated;
    result = cudaErrorStreamCaptureUnsupported;
  }
  return remember_error(result);
}

cudaError_t check_event_not_captured(const EventState& event) {
  const std::shared_ptr<Capture> captured = event.capture.lock();
  if (!captured) return check_not_capturing();
  if (captured->error == cudaSuccess) captured->error = cudaErrorStreamCaptureInvalidated;
  return remember_error(cudaErrorCapturedEvent);
}

cudaError_t check_default_stream() {
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures()) {
    if (capture->thread != std::this_thread::get_id()) continue;
    if (capture->error == cudaSuccess) capture->error = cudaErrorStreamCaptureInvalidated;
    result = cudaErrorStreamCaptureImplicit;
  }
  return remember_error(result);
}

}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

struct CUgraph_st {
  std::vector<CapturedNode> nodes;
  std::size_t branches = 0;
  int device = 0;
  std::uint64_t newest_allocation = 0;  ///< newest allocation that the operations may access
};

struct CUgraphExec_st {
  CUgraph_st graph;
  std::vector<cudaStream_t> branches = {};            ///< streams of all branches but the first
  std::shared_ptr<EventState> last_launch = nullptr;  ///< done when the last launch has ended
};

namespace {

std::shared_ptr<EventState> push_record(cudaStream_t stream) {
  auto event = std::make_shared<EventState>();
  event->stream = stream;
  event->recorded = 1;
  push(stream,
       {.name = "cudaGraphLaunch", .run = nullptr, .recorded_event = event, .version = 1, .may_outlive_stream = true});
  return event;
}
void push_wait(cudaStream_t stream, const std::shared_ptr<EventState>& event) {
  push(stream,
       {.name = "cudaGraphLaunch", .run = nullptr, .waited_event = event, .version = 1, .may_outlive_stream = true});
}

void push_nodes(const CUgraphExec_st& exec, cudaStream_t stream) {
  const std::vector<CapturedNode>& nodes = exec.graph.nodes;
  std::set<std::size_t> awaited;
  for (const CapturedNode& node : nodes) awaited.insert(node.waits.begin(), node.waits.end());
  std::map<std::size_t, std::shared_ptr<EventState>> events;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const cudaStream_t branch = nodes[i].branch == 0 ? stream : exec.branches[nodes[i].branch - 1];
    for (const std::size_t wait : nodes[i].waits) push_wait(branch, events.at(wait));
    Operation operation = nodes[i].operation;
    operation.name += " (graph)";
    operation.newest_allocation = exec.graph.newest_allocation;
    operation.may_outlive_stream = nodes[i].branch > 0;  // a destroyed graph completes its launches
    push(branch, std::move(operation));
    if (awaited.contains(i)) events[i] = push_record(branch);
  }
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(simulator_mutex());
  if (!stream) return remember_error(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return remember_error(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>(Capture{
      .mode = mode, .thread = std::this_thread::get_id(), .device = stream->device, .branches = {{.stream = stream}}});
  captures().push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(simulator_mutex());
  *graph = nullptr;
  if (!is_capturing(stream)) return remember_error(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->branches[0].stream != stream) return invalidate_capture(stream, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return invalidate_capture(stream, cudaErrorStreamCaptureWrongThread);
  if (capture->error == cudaSuccess && !is_joined(*capture)) capture->error = cudaErrorStreamCaptureUnjoined;
  if (!capture->branches[0].waits.empty()) capture->add(stream, {.name = "end of the graph", .run = nullptr});
  for (const Capture::Branch& branch : capture->branches) branch.stream->capture = nullptr;
  std::erase(captures(), capture);
  if (capture->error != cudaSuccess) return remember_error(capture->error);
  *graph = new CUgraph_st{std::move(capture->nodes), capture->branches.size(), capture->device, newest_allocation()};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(simulator_mutex());
  *status = !is_capturing(stream)                   ? cudaStreamCaptureStatusNone
            : stream->capture->error == cudaSuccess ? cudaStreamCaptureStatusActive
                                                    : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes) report("cudaGraphGetNodes: the nodes of a graph are not simulated, only their number");
  *count = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Lock lock(simulator_mutex());
  *exec = nullptr;
  if (sticky_error() != cudaSuccess) return remember_error(sticky_error());
  if (should_fail("cudaGraphInstantiate")) return remember_error(cudaErrorMemoryAllocation);
  *exec = new CUgraphExec_st{*graph};
  for (std::size_t i = 1; i < graph->branches; ++i) (*exec)->branches.push_back(new_internal_stream(graph->device));
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(simulator_mutex());
  if (sticky_error() != cudaSuccess) return remember_error(sticky_error());
  if (should_fail("cudaGraphLaunch")) return remember_error(cudaErrorLaunchFailure);
  if (!stream || is_capturing(stream)) {
    report("cudaGraphLaunch on the default stream or during a capture is not simulated");
    return remember_error(cudaErrorNotSupported);
  }
  count_call("cudaGraphLaunch");
  charge_call();
  if (exec->last_launch) push_wait(stream, exec->last_launch);
  const std::shared_ptr<EventState> begin = exec->branches.empty() ? nullptr : push_record(stream);
  for (const cudaStream_t branch : exec->branches) push_wait(branch, begin);
  push_nodes(*exec, stream);
  exec->last_launch = push_record(stream);
  run_by_policy();
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Lock lock(simulator_mutex());
  for (const cudaStream_t branch : exec->branches) cudaStreamDestroy(branch);
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
