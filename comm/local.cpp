#include "comm/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "comm/checks.h"
#include "comm/copy_bytes.h"
#include "comm/reduce.h"

namespace mcpp {
namespace {

/// Error of a rank that is stopped because another rank failed.
class StoppedError : public Error {
 public:
  StoppedError() : Error(ExitCode::PeerLost, "another rank ended with an error") {}
};

/// State shared by all groups of one run. A single lock suffices because there are few threads.
struct World {
  explicit World(int n) : ranks(n) {}

  std::mutex mutex;
  int ranks;
  int num_ended = 0;
  bool is_stopped = false;

  // All methods below require `mutex` to be held.
  /// Wakes only the ranks that wait for `event`; waking takes longer than most of the operations they wait for.
  void notify(const void* event) {
    wake([event](const Sleeper& sleeper) { return sleeper.event == event; });
  }
  void stop() {
    is_stopped = true;
    wake([](const Sleeper&) { return true; });
  }
  void end_rank() {
    ++num_ended;
    if (!is_any_awake()) wake([](const Sleeper&) { return true; });  // the last one detects the deadlock
  }
  /// Sleeps until ready() returns true, which notify(event) signals. Throws if every running rank is blocked.
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, const void* event, const Ready& ready) {
    while (!ready()) {
      if (is_stopped) throw StoppedError();
      Sleeper sleeper{.event = event, .woken = {}};
      sleepers_.push_back(&sleeper);
      if (!is_any_awake()) {
        stop();
        fail(ExitCode::Internal, "deadlock: every running rank is blocked");
      }
      sleeper.woken.wait(lock, [&sleeper] { return sleeper.is_awake; });
    }
  }

 private:
  struct Sleeper {
    const void* event;
    std::condition_variable woken;
    bool is_awake = false;
  };

  bool is_any_awake() const { return static_cast<int>(sleepers_.size()) + num_ended < ranks; }
  template <class Filter>
  void wake(const Filter& filter) {
    std::erase_if(sleepers_, [&filter](Sleeper* sleeper) {
      if (!filter(*sleeper)) return false;
      sleeper->is_awake = true;
      sleeper->woken.notify_one();
      return true;
    });
  }

  std::vector<Sleeper*> sleepers_;
};

enum class Kind : u8 { AllReduce, AllGather, ReduceScatter, Broadcast, AllToAll, AllToAllV, Barrier, Split };
constexpr std::string_view name_of(Kind kind) {
  constexpr std::string_view kNames[]{"all_reduce", "all_gather",   "reduce_scatter", "broadcast",
                                      "all_to_all", "all_to_all_v", "barrier",        "split"};
  return kNames[static_cast<int>(kind)];
}

/// Properties of a call that must match on all ranks.
struct Call {
  Kind kind;
  DType dtype = DType::F32;
  i64 count = 0;   ///< elements of the full tensor
  int option = 0;  ///< ReduceOp or root
  bool operator==(const Call&) const = default;
};

std::string describe(const Call& call) {
  return str(name_of(call.kind), " of ", call.count, " ", mcpp::name_of(call.dtype), " (", call.option, ")");
}

struct Group;

/// Collective in flight: the arguments of each rank, collected until all have arrived.
struct Collective {
  explicit Collective(const Call& c, int ranks) : call(c), arguments(ranks) {}

  struct Argument {
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
    std::vector<Part> send, receive;  // all_to_all_v only
    int color = 0, key = 0;           // split only
    std::shared_ptr<Group> group;     // result of split
    int rank = 0;
  };
  Call call;
  int first_rank = -1;
  std::vector<Argument> arguments;
  int arrived = 0;
  bool is_done = false;
};

struct Message {
  DType dtype;
  std::vector<std::byte> bytes;
};

/// Numbered messages from one rank to another.
struct Channel {
  u64 num_sent = 0, num_received = 0;
  std::map<u64, Message> messages;
};

struct Group {
  Group(std::shared_ptr<World> w, int n) : world(std::move(w)), size(n), calls(n), channels(n * n) {}

  std::shared_ptr<World> world;
  int size;
  std::vector<u64> calls;  // number of calls by each rank
  std::map<u64, std::shared_ptr<Collective>> in_flight;
  std::vector<Channel> channels;  // [source * size + destination]
};

void reduce_parts(const Collective& c, i64 offset, i64 count, std::byte* out) {
  std::vector<const void*> parts;
  for (const auto& argument : c.arguments) parts.push_back(argument.in + offset);
  const ReduceOp op = c.call.kind == Kind::AllReduce ? static_cast<ReduceOp>(c.call.option) : ReduceOp::Sum;
  reduce(op, c.call.dtype, parts, out, count);
}

void split_group(Collective& c, const std::shared_ptr<World>& world) {
  std::map<int, std::vector<Collective::Argument*>> by_color;
  for (auto& argument : c.arguments) by_color[argument.color].push_back(&argument);
  for (auto& [color, members] : by_color) {
    std::stable_sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->key < b->key; });
    const auto group = std::make_shared<Group>(world, static_cast<int>(members.size()));
    for (int rank = 0; auto* member : members) {
      member->group = group;
      member->rank = rank++;
    }
  }
}

void exchange_parts(const Collective& c) {
  const i64 item = size_of(c.call.dtype);
  const int n = static_cast<int>(c.arguments.size());
  for (int to = 0; to < n; ++to) {
    for (int from = 0; from < n; ++from) {
      const Collective::Argument &a = c.arguments[from], &b = c.arguments[to];
      check_counts(a.send[to].count, from, b.receive[from].count, to);
      copy_bytes(b.out + b.receive[from].first * item, a.in + a.send[to].first * item, a.send[to].count * item);
    }
  }
}

/// Executes the collective for all ranks, in rank order as reductions require.
void execute_collective(Collective& c, Group& group) {
  const int n = group.size;
  const i64 bytes = c.call.count * size_of(c.call.dtype), part = bytes / n;
  auto& a = c.arguments;
  switch (c.call.kind) {
    case Kind::AllReduce:
      reduce_parts(c, 0, c.call.count, a[0].out);
      for (int r = 1; r < n; ++r) copy_bytes(a[r].out, a[0].out, bytes);
      break;
    case Kind::ReduceScatter:
      for (int r = 0; r < n; ++r) reduce_parts(c, r * part, c.call.count / n, a[r].out);
      break;
    case Kind::AllGather:
      for (int r = 0; r < n; ++r)
        for (int q = 0; q < n; ++q) copy_bytes(a[r].out + q * part, a[q].in, part);
      break;
    case Kind::Broadcast:
      for (int r = 0; r < n; ++r) copy_bytes(a[r].out, a[c.call.option].in, bytes);
      break;
    case Kind::AllToAll:
      for (int r = 0; r < n; ++r)
        for (int q = 0; q < n; ++q) copy_bytes(a[r].out + q * part, a[q].in + r * part, part);
      break;
    case Kind::AllToAllV:
      exchange_parts(c);
      break;
    case Kind::Barrier:
      break;
    case Kind::Split:
      split_group(c, group.world);
      break;
  }
}

/// One rank's participation in a collective. The pointers that peers use stay valid until the collective completes; if
/// this rank leaves early because of an error, the run is stopped first.
class PendingCollective {
 public:
  PendingCollective(const std::shared_ptr<Group>& group, int rank, const Call& call, Collective::Argument argument,
                    std::vector<Tensor> tensors)
      : world_(group->world), tensors_(std::move(tensors)) {
    const std::lock_guard lock(world_->mutex);
    if (world_->is_stopped) throw StoppedError();
    auto& slot = group->in_flight[group->calls[rank]++];
    if (!slot) slot = std::make_shared<Collective>(call, group->size);
    collective_ = slot;
    if (slot->first_rank < 0) slot->first_rank = rank;
    MCPP_CHECK(slot->call == call, "rank ", rank, " calls ", describe(call), " where rank ", slot->first_rank,
               " called ", describe(slot->call));
    slot->arguments[rank] = std::move(argument);
    if (++slot->arrived < group->size) return;
    execute_collective(*collective_, *group);
    collective_->is_done = true;
    group->in_flight.erase(group->calls[rank] - 1);
    world_->notify(collective_.get());
  }
  PendingCollective(const PendingCollective&) = delete;
  PendingCollective& operator=(const PendingCollective&) = delete;
  ~PendingCollective() {
    const std::lock_guard lock(world_->mutex);
    if (!collective_->is_done) world_->stop();
  }

  void wait() {
    std::unique_lock lock(world_->mutex);
    world_->wait(lock, collective_.get(), [&] { return collective_->is_done; });
  }
  const Collective& collective() const { return *collective_; }

 private:
  std::shared_ptr<World> world_;
  std::vector<Tensor> tensors_;
  std::shared_ptr<Collective> collective_;
};

void receive(Group& group, Channel& channel, u64 number, Tensor& t, int source) {
  World& world = *group.world;
  std::unique_lock lock(world.mutex);
  world.wait(lock, &channel, [&] { return channel.messages.contains(number); });
  const auto it = channel.messages.find(number);
  const Message& message = it->second;
  MCPP_CHECK(message.dtype == t.dtype() && static_cast<i64>(message.bytes.size()) == t.bytes(), "rank ", source,
             " sent ", message.bytes.size(), " bytes of ", mcpp::name_of(message.dtype), ", expected ", t.bytes(),
             " of ", mcpp::name_of(t.dtype()));
  copy_bytes(t.raw(), message.bytes.data(), t.bytes());
  channel.messages.erase(it);
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size; }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    check_on_cpu(t);
    return start({Kind::AllReduce, t.dtype(), t.numel(), static_cast<int>(op)}, t, t);
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    check_shard(shard, full, *this);
    return start({Kind::AllGather, full.dtype(), full.numel()}, shard, full);
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    check_shard(shard, full, *this);
    return start({Kind::ReduceScatter, full.dtype(), full.numel()}, full, shard);
  }
  Work broadcast(Tensor& t, int root) override {
    check_on_cpu(t);
    check_root(root, *this);
    return start({Kind::Broadcast, t.dtype(), t.numel(), root}, t, t);
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    check_exchange(in, out, *this);
    return start({Kind::AllToAll, in.dtype(), in.numel()}, in, out);
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    check_on_cpu(in);
    check_on_cpu(out);
    check_exchange(in, send, out, receive, *this);
    Collective::Argument argument;
    argument.send.assign(send.begin(), send.end());
    argument.receive.assign(receive.begin(), receive.end());
    return start({Kind::AllToAllV, in.dtype()}, in, out, std::move(argument));
  }

  Work send(const Tensor& t, int destination) override {
    check_on_cpu(t);
    check_peer(destination, *this);
    World& world = *group_->world;
    const std::lock_guard lock(world.mutex);
    if (world.is_stopped) throw StoppedError();
    Channel& channel = group_->channels[rank_ * size() + destination];
    channel.messages.emplace(channel.num_sent++, Message{t.dtype(), {first_byte(t), first_byte(t) + t.bytes()}});
    world.notify(&channel);
    return {};
  }
  Work recv(Tensor& t, int source) override {
    check_on_cpu(t);
    check_peer(source, *this);
    Channel& channel = group_->channels[source * size() + rank_];
    // `num_received` is accessed only by the receiving rank, so it needs no lock. The number keeps receives in posting
    // order.
    const u64 number = channel.num_received++;
    return Work(
        [group = group_, &channel, number, t, source]() mutable { receive(*group, channel, number, t, source); });
  }

  void barrier() override { PendingCollective(group_, rank_, {Kind::Barrier}, {}, {}).wait(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    check_color(color);
    Collective::Argument argument;
    argument.color = color;
    argument.key = key;
    PendingCollective pending(group_, rank_, {Kind::Split}, argument, {});
    pending.wait();
    const auto& result = pending.collective().arguments[rank_];
    return std::make_unique<LocalCommunicator>(result.group, result.rank);
  }
  void abort(int exit_code) noexcept override { std::_Exit(exit_code); }

 private:
  Work start(const Call& call, const Tensor& in, Tensor& out, Collective::Argument argument = {}) {
    argument.in = first_byte(in);
    argument.out = static_cast<std::byte*>(out.raw());
    const auto pending =
        std::make_shared<PendingCollective>(group_, rank_, call, std::move(argument), std::vector{in, out});
    return Work([pending] { pending->wait(); });
  }

  std::shared_ptr<Group> group_;
  int rank_;
};

}  // namespace

void run_local_ranks(int n, const std::function<void(Communicator& world, int rank)>& f) {
  MCPP_CHECK(n >= 1, n, " ranks");
  const auto world = std::make_shared<World>(n);
  const auto group = std::make_shared<Group>(world, n);
  std::exception_ptr first_error, stop_error;
  const auto run = [&](int rank) {
    std::exception_ptr error;
    bool is_cause = true;
    try {
      LocalCommunicator communicator(group, rank);
      f(communicator, rank);
    } catch (const StoppedError&) {
      error = std::current_exception();
      is_cause = false;
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(world->mutex);
    world->end_rank();
    if (!error) return;
    std::exception_ptr& stored_error = is_cause ? first_error : stop_error;
    if (!stored_error) stored_error = error;
    world->stop();
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  if (first_error || stop_error) std::rethrow_exception(first_error ? first_error : stop_error);
}

}  // namespace mcpp
