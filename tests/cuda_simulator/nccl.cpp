// NCCL between the threads of a process: an operation completes when it has reached the head of the streams of all its
// ranks. Mismatched calls are reported with the calls of both ranks; unmatched calls cause a deadlock, which the
// scheduler detects.
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cuda_simulator/clock.h"
#include "tests/cuda_simulator/number_formats.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {
namespace {

enum class Kind { AllReduce, AllGather, ReduceScatter, Broadcast };

const char* name_of(Kind kind) {
  static const char* const kNames[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast"};
  return kNames[static_cast<int>(kind)];
}

/// A rank's call of a collective.
struct Call {
  Kind kind{};
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t op{};
  int root = 0;
  VectorClock clock = {};
  double seconds = 0;  ///< when it reached the head of its stream
};

struct Message {
  bool is_send = false;
  void* data = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  int peer = 0;
  bool is_done = false;
  VectorClock clock = {};
  double seconds = 0;  ///< when it reached the head of its stream, then when it is complete
};

using Pair = std::pair<int, int>;  // source and destination

struct Group {
  int size = 0, joined = 0;
  bool is_aborted = false, has_failed = false;
  std::map<long, std::map<int, Call>> arrived;  // by number of the operation and rank
  std::map<long, VectorClock> completed;
  std::map<long, double> completed_at;
  std::map<long, int> leaving;
  std::map<Pair, std::deque<std::shared_ptr<Message>>> sends, receives;
};

std::map<std::string, std::shared_ptr<Group>>& groups() {
  static auto* const only = new std::map<std::string, std::shared_ptr<Group>>;
  return *only;
}

}  // namespace
}  // namespace mcpp::cuda_simulator

struct ncclComm {
  std::shared_ptr<mcpp::cuda_simulator::Group> group;
  int rank = 0;
  long next_operation = 0;
};

namespace mcpp::cuda_simulator {
namespace {

Format format_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return Format::I8;
    case ncclInt32:
      return Format::I32;
    case ncclInt64:
      return Format::I64;
    case ncclFloat16:
      return Format::F16;
    case ncclFloat32:
      return Format::F32;
    case ncclFloat64:
      return Format::F64;
    case ncclBfloat16:
      return Format::BF16;
    default:
      return Format::Unknown;
  }
}

std::string describe(const Call& call) {
  std::ostringstream text;
  text << name_of(call.kind) << " of " << call.count << " elements of type " << call.type << ", operation " << call.op
       << ", root " << call.root;
  return text.str();
}

bool matches(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op && a.root == b.root;
}

std::size_t bytes_of(const Call& call) {
  return call.count * size_of(format_of(call.type));
}

double maximum(double a, double b) {
  return std::isnan(a) || b <= a ? a : b;
}

/// Adds the ranks' values in the order of ranks, in fp32 or a wider type.
double reduce_in_rank_order(const std::vector<const void*>& inputs, std::int64_t i, Format format, ncclRedOp_t op) {
  const Format wide = format == Format::F64 ? Format::F64 : Format::F32;
  double total = load_element(inputs[0], i, format);
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    const double x = load_element(inputs[rank], i, format);
    total = op == ncclSum ? round_to(total + x, wide) : maximum(total, x);
  }
  return total;
}

/// Adds the ranks' values in an order that differs between elements, as rings do, rounding after every addition.
double reduce_element(const std::vector<const void*>& inputs, std::int64_t i, Format format, ncclRedOp_t op) {
  if (settings().sums_in_rank_order) return reduce_in_rank_order(inputs, i, format, op);
  const std::size_t ranks = inputs.size(), first = (static_cast<std::size_t>(i) + settings().seed) % ranks;
  double total = load_element(inputs[first], i, format);
  for (std::size_t k = 1; k < ranks; ++k) {
    const double x = load_element(inputs[(first + k) % ranks], i, format);
    total = op == ncclSum ? round_to(total + x, format) : std::fmax(total, x);
  }
  return total;
}

template <class T>
void reduce_integers(std::map<int, Call>& calls, const Call& first, std::size_t total) {
  std::vector<std::uint64_t> results(total);  // unsigned, because sums wrap around
  for (const auto& [rank, call] : calls) {
    for (std::size_t i = 0; i < total; ++i) {
      const auto x = static_cast<std::int64_t>(load_as<T>(call.in, static_cast<std::int64_t>(i)));
      const bool is_larger = x > static_cast<std::int64_t>(results[i]);
      if (rank == 0 || (first.op == ncclMax && is_larger))
        results[i] = static_cast<std::uint64_t>(x);
      else if (first.op == ncclSum)
        results[i] += static_cast<std::uint64_t>(x);
    }
  }
  for (auto& [rank, call] : calls) {
    const std::size_t begin = first.kind == Kind::ReduceScatter ? static_cast<std::size_t>(rank) * first.count : 0;
    for (std::size_t i = 0; i < first.count; ++i)
      store_as(call.out, static_cast<std::int64_t>(i), static_cast<T>(results[begin + i]));
  }
}

void reduce(std::map<int, Call>& calls, const Call& first) {
  const bool scatters = first.kind == Kind::ReduceScatter;
  const Format format = format_of(first.type);
  const std::size_t total = first.count * (scatters ? calls.size() : 1);
  if (format == Format::I32) return reduce_integers<std::int32_t>(calls, first, total);
  if (format == Format::I64) return reduce_integers<std::int64_t>(calls, first, total);
  std::vector<const void*> inputs;
  for (const auto& [rank, call] : calls) inputs.push_back(call.in);
  std::vector<double> sums(total);
  for (std::size_t i = 0; i < total; ++i)
    sums[i] = reduce_element(inputs, static_cast<std::int64_t>(i), format, first.op);
  for (auto& [rank, call] : calls) {
    const std::size_t begin = scatters ? static_cast<std::size_t>(rank) * first.count : 0;
    for (std::size_t i = 0; i < first.count; ++i)
      store_element(call.out, static_cast<std::int64_t>(i), format, sums[begin + i]);
  }
}

void copy_to_all(std::map<int, Call>& calls, const Call& first) {
  const std::size_t bytes = bytes_of(first);
  std::vector<char> gathered;
  for (const auto& [rank, call] : calls) {
    if (first.kind == Kind::Broadcast && rank != first.root) continue;
    const char* in = static_cast<const char*>(call.in);
    gathered.insert(gathered.end(), in, in + bytes);
  }
  for (auto& [rank, call] : calls) std::memcpy(call.out, gathered.data(), gathered.size());
}

/// Maximum size of operations that move values if only time is simulated.
constexpr std::size_t kSmallCopy = 1 << 20;

/// Returns the time at which a collective completes after its last rank has started it.
double end_of(const std::map<int, Call>& calls) {
  const Call& first = calls.begin()->second;
  double begin = 0;
  for (const auto& [rank, call] : calls) begin = std::max(begin, call.seconds);
  const bool has_parts = first.kind == Kind::AllGather || first.kind == Kind::ReduceScatter;
  const double bytes = static_cast<double>(bytes_of(first) * (has_parts ? calls.size() : 1));
  const CostModel* const model = cost_model();
  const auto kind = static_cast<CollectiveKind>(first.kind);  // in the same order
  return model ? begin + model->collective(kind, bytes, static_cast<int>(calls.size())) : 0;
}

/// Performs a collective whose ranks have all arrived.
void perform(std::map<int, Call>& calls, long number) {
  const Call& first = calls.begin()->second;
  for (const auto& [rank, call] : calls) {
    if (matches(first, call)) continue;
    report("NCCL: operation %ld of a communicator differs between ranks: rank 0 calls %s; rank %d calls %s", number,
           describe(first).c_str(), rank, describe(call).c_str());
    return;
  }
  if (!settings().computes && bytes_of(first) > kSmallCopy) return;
  if (first.kind == Kind::AllReduce || first.kind == Kind::ReduceScatter)
    reduce(calls, first);
  else
    copy_to_all(calls, first);
}

void record_call(const Call& call, int ranks) {
  const std::size_t bytes = bytes_of(call), all = bytes * static_cast<std::size_t>(ranks);
  record_access(call.in, call.kind == Kind::ReduceScatter ? all : bytes, false);
  record_access(call.out, call.kind == Kind::AllGather ? all : bytes, true);
}

/// Queues this rank's part of a collective in two operations: arrival, and the wait for all others.
ncclResult_t enqueue_collective(ncclComm_t comm, Call call, cudaStream_t stream) {
  const Lock lock(simulator_mutex());
  const std::shared_ptr<Group> group = comm->group;
  const int rank = comm->rank;
  const long number = comm->next_operation++;
  const std::string name = std::string(name_of(call.kind)) + " (operation " + std::to_string(number) + ", rank " +
                           std::to_string(rank) + " of " + std::to_string(group->size) + ", " +
                           std::to_string(call.count) + " elements)";
  if (should_fail("nccl")) group->has_failed = true;  // never completes; all ranks see an asynchronous error
  const auto arrive = [=]() mutable {
    if (group->has_failed) return;
    call.clock = current_clock();
    call.seconds = stream_seconds();
    record_call(call, group->size);
    auto& calls = group->arrived[number];
    calls[rank] = call;
    if (static_cast<int>(calls.size()) < group->size) return;
    perform(calls, number);
    for (const auto& [other, arrived] : calls) group->completed[number].join(arrived.clock);
    group->leaving[number] = group->size;
    group->completed_at[number] = end_of(calls);
    notify_progress();
  };
  const auto leave = [=] {
    if (group->is_aborted) return;
    join_clock(group->completed[number]);
    advance_stream_to(group->completed_at[number]);
    record_call(call, group->size);
    if (--group->leaving[number] > 0) return;
    group->arrived.erase(number);
    group->completed.erase(number);
    group->completed_at.erase(number);
    group->leaving.erase(number);
  };
  enqueue(stream, {.name = name, .run = arrive});
  enqueue(stream, {.name = name + " waits for its peers", .run = leave, .is_ready = [=] {
                     return group->is_aborted || group->leaving.contains(number);
                   }});
  return ncclSuccess;
}

/// Copies messages of the pair as long as both sides have one.
void match_messages(Group& group, Pair pair) {
  auto &sends = group.sends[pair], &receives = group.receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Message &from = *sends.front(), &to = *receives.front();
    if (from.count != to.count || from.type != to.type)
      report("NCCL: rank %d sends %zu elements of type %d to rank %d, which receives %zu of type %d", pair.first,
             from.count, static_cast<int>(from.type), pair.second, to.count, static_cast<int>(to.type));
    const std::size_t count = std::min(from.count, to.count);
    const std::size_t bytes = count * size_of(format_of(from.type));
    if (settings().computes || bytes <= kSmallCopy) std::memcpy(to.data, from.data, bytes);
    from.seconds = to.seconds =
        std::max(from.seconds, to.seconds) + (cost_model() ? cost_model()->message(static_cast<double>(bytes)) : 0);
    from.is_done = to.is_done = true;
    from.clock.join(to.clock);
    to.clock = from.clock;
    sends.pop_front();
    receives.pop_front();
  }
  notify_progress();
}

struct PendingMessage {
  ncclComm_t comm;
  cudaStream_t stream;
  Message message;
};
thread_local int group_depth = 0;
thread_local std::vector<PendingMessage> pending;

std::string describe(const std::vector<std::shared_ptr<Message>>& messages, int rank) {
  std::ostringstream text;
  text << "ncclGroup of rank " << rank << ":";
  for (const auto& m : messages)
    text << (m->is_send ? " send " : " receive ") << m->count << (m->is_send ? " to " : " from ") << m->peer << ",";
  std::string result = text.str();
  result.pop_back();
  return result;
}

void enqueue_messages(ncclComm_t comm, cudaStream_t stream, const std::vector<std::shared_ptr<Message>>& messages) {
  const std::shared_ptr<Group> group = comm->group;
  const int rank = comm->rank;
  const auto record_all = [messages] {
    for (const auto& m : messages) record_access(m->data, m->count * size_of(format_of(m->type)), !m->is_send);
  };
  const std::string name = describe(messages, rank);
  enqueue(stream, {.name = name, .run = [=] {
                     record_all();
                     for (const auto& m : messages) {
                       m->clock = current_clock();
                       m->seconds = stream_seconds();
                       const Pair pair = m->is_send ? Pair{rank, m->peer} : Pair{m->peer, rank};
                       (m->is_send ? group->sends : group->receives)[pair].push_back(m);
                       match_messages(*group, pair);
                     }
                   }});
  const auto is_done = [](const std::shared_ptr<Message>& m) { return m->is_done; };
  enqueue(stream, {.name = name + " waits for its peers",
                   .run =
                       [=] {
                         for (const auto& m : messages) join_clock(m->clock), advance_stream_to(m->seconds);
                         record_all();
                       },
                   .is_ready = [=] { return group->is_aborted || std::ranges::all_of(messages, is_done); }});
}

/// Queues the messages of a finished ncclGroup, those of a communicator as one operation.
ncclResult_t flush_group() {
  const Lock lock(simulator_mutex());
  std::vector<PendingMessage> all = std::exchange(pending, {});
  while (!all.empty()) {
    const ncclComm_t comm = all.front().comm;
    const cudaStream_t stream = all.front().stream;
    std::vector<std::shared_ptr<Message>> messages;
    for (const PendingMessage& p : all)
      if (p.comm == comm) messages.push_back(std::make_shared<Message>(p.message));
    std::erase_if(all, [&](const PendingMessage& p) { return p.comm == comm; });
    enqueue_messages(comm, stream, messages);
  }
  return ncclSuccess;
}

ncclResult_t add_message(ncclComm_t comm, cudaStream_t stream, const Message& message) {
  if (message.peer < 0 || message.peer >= comm->group->size) return ncclInvalidArgument;
  pending.push_back({comm, stream, message});
  return group_depth == 0 ? flush_group() : ncclSuccess;
}

}  // namespace
}  // namespace mcpp::cuda_simulator

using namespace mcpp::cuda_simulator;

extern "C" {

const char* ncclGetErrorString(ncclResult_t) {
  return "an error of the simulated NCCL";
}
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock(simulator_mutex());
  static std::uint64_t next = 1;
  *id = {};
  std::memcpy(id->internal, &next, sizeof(next));
  ++next;
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  Lock lock(simulator_mutex());
  std::shared_ptr<Group>& found = groups()[std::string(id.internal, sizeof(id.internal))];
  if (!found) {
    found = std::make_shared<Group>();
    found->size = size;
  }
  const std::shared_ptr<Group> group = found;
  if (group->size != size || rank < 0 || rank >= size) {
    report("ncclCommInitRank: rank %d of %d joins a communicator of %d ranks", rank, size, group->size);
    return ncclInvalidArgument;
  }
  *comm = new ncclComm{group, rank, 0};
  ++group->joined;
  notify_progress();
  wait_until(
      lock, nullptr, [&] { return group->joined >= group->size; }, "ncclCommInitRank");
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock(simulator_mutex());
  comm->group->is_aborted = true;
  notify_progress();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock(simulator_mutex());
  *error = comm->group->has_failed ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective(comm, {Kind::AllReduce, in, out, count, type, op, 0}, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue_collective(comm, {Kind::AllGather, in, out, count, type, ncclSum, 0}, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return enqueue_collective(comm, {Kind::ReduceScatter, in, out, count, type, op, 0}, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue_collective(comm, {Kind::Broadcast, in, out, count, type, ncclSum, root}, stream);
}
ncclResult_t ncclGroupStart(void) {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
  return --group_depth == 0 ? flush_group() : ncclSuccess;
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(comm, stream,
                     {.is_send = true, .data = const_cast<void*>(data), .count = count, .type = type, .peer = peer});
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_message(comm, stream, {.is_send = false, .data = data, .count = count, .type = type, .peer = peer});
}

}  // extern "C"
