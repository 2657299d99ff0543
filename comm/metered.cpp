#include "comm/metered.h"

#include <array>

namespace mcpp {
namespace {

/// Profiler range names: while an operation is started, and while it is waited for.
struct OpNames {
  const char *begin, *wait;
};
constexpr OpNames names_of(CommOp op) {
  constexpr std::array<OpNames, kCommOps> kNames{{{"all_reduce", "all_reduce wait"},
                                                  {"all_gather", "all_gather wait"},
                                                  {"reduce_scatter", "reduce_scatter wait"},
                                                  {"broadcast", "broadcast wait"},
                                                  {"all_to_all", "all_to_all wait"},
                                                  {"send", "send wait"},
                                                  {"recv", "recv wait"},
                                                  {"barrier", "barrier"}}};
  return kNames[static_cast<std::size_t>(op)];
}

WaitRange make_wait_range(CommMeter& meter, const char* name, i64 bytes = -1) {
  return {meter.exposed_seconds,
          meter.waits.get(),
          meter.profiler,
          name,
          meter.kind,
          {.bytes = bytes, .group = meter.group}};
}

class MeteredCommunicator final : public Communicator {
 public:
  MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter, GroupLog log)
      : inner_(std::move(inner)), meter_(std::move(meter)), log_(std::move(log)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    contribute(CommOp::AllReduce, &t);
    return start(CommOp::AllReduce, bytes_to_others(2 * t.bytes()), log_.collective("all_reduce", t.bytes()),
                 [&] { return inner_->all_reduce(t, op); });
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    contribute(CommOp::AllGather, &shard);
    return start(CommOp::AllGather, bytes_to_others(full.bytes()), log_.collective("all_gather", full.bytes()),
                 [&] { return inner_->all_gather(shard, full); });
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    contribute(CommOp::ReduceScatter, &full);
    return start(CommOp::ReduceScatter, bytes_to_others(full.bytes()), log_.collective("reduce_scatter", full.bytes()),
                 [&] { return inner_->reduce_scatter(full, shard); });
  }
  Work broadcast(Tensor& t, int root) override {
    contribute(CommOp::Broadcast, rank() == root ? &t : nullptr);
    return start(CommOp::Broadcast, size() > 1 ? t.bytes() : 0, log_.collective("broadcast", t.bytes()),
                 [&] { return inner_->broadcast(t, root); });
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    contribute(CommOp::AllToAll, &in);
    return start(CommOp::AllToAll, bytes_to_others(in.bytes()), log_.collective("all_to_all", in.bytes()),
                 [&] { return inner_->all_to_all(in, out); });
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    i64 sent = 0;
    for (int r = 0; r < static_cast<int>(send.size()); ++r) sent += r == rank() ? 0 : send[r].count;
    const i64 bytes = sent * size_of(in.dtype());
    if (meter_->contributions)
      meter_->contributions->add_collective("all_to_all_v", meter_->group, meter_->ranks, in, send);
    return start(CommOp::AllToAll, bytes, log_.collective("all_to_all_v", bytes),
                 [&] { return inner_->all_to_all_v(in, send, out, receive); });
  }
  void connect(const std::vector<int>& peers) override {
    const GroupLog::Entry entry = log_.collective("connect", 0);
    inner_->connect(peers);
  }
  Work send(const Tensor& t, int destination) override {
    if (meter_->contributions)
      meter_->contributions->add_message(meter_->group, meter_->ranks, rank(), destination, &t);
    return start(CommOp::Send, t.bytes(), log_.send(destination, t.bytes()),
                 [&] { return inner_->send(t, destination); });
  }
  Work recv(Tensor& t, int source) override {
    Work work = start(CommOp::Recv, 0, log_.recv(source, t.bytes()), [&] { return inner_->recv(t, source); });
    if (!meter_->contributions || !meter_->contributions->is_recording()) return work;
    // A message has an effect from when it is waited for; the receive may have been started much earlier.
    const auto record = [meter = meter_, source, own = rank()] {
      if (meter->contributions) meter->contributions->add_message(meter->group, meter->ranks, source, own, nullptr);
    };
    if (work.is_complete()) {
      record();
      return {};
    }
    const auto operation = std::make_shared<Work>(std::move(work));
    return Work(
        [operation, record] {
          operation->wait();
          record();
        },
        [operation] { return operation->is_done(); });
  }
  void barrier() override {
    const WaitRange range = make_wait_range(*meter_, names_of(CommOp::Barrier).begin, 0);
    const GroupLog::Entry entry = log_.collective("barrier", 0);
    inner_->barrier();
    ++(*meter_)[CommOp::Barrier].calls;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const GroupLog::Entry entry = log_.collective("split", 0);
    return inner_->split(color, key);
  }
  void abort(int exit_code) noexcept override { inner_->abort(exit_code); }

 private:
  /// Operation in flight.
  struct InFlightOperation {
    Work work;
    GroupLog::Entry entry;
  };

  /// Records what this rank contributes to a collective; null: nothing.
  void contribute(CommOp op, const Tensor* data) const {
    if (meter_->contributions)
      meter_->contributions->add_collective(names_of(op).begin, meter_->group, meter_->ranks, data);
  }

  i64 bytes_to_others(i64 bytes) const { return bytes * (size() - 1) / size(); }

  /// Calls f, which starts the operation. Operations that throw are not counted.
  template <class F>
  Work start(CommOp op, i64 bytes, GroupLog::Entry entry, const F& f) {
    const WaitRange range = make_wait_range(*meter_, names_of(op).begin, bytes);
    Work work = f();
    ++(*meter_)[op].calls;
    (*meter_)[op].bytes += bytes;
    if (work.is_complete()) return {};
    entry.pause();
    const auto operation = std::make_shared<InFlightOperation>(InFlightOperation{std::move(work), std::move(entry)});
    const auto wait = [operation, meter = meter_, op] {
      const WaitRange waiting = make_wait_range(*meter, names_of(op).wait);
      operation->entry.resume();
      operation->work.wait();
      if (auto is_done = operation->work.take_query()) operation->entry.track_completion(std::move(is_done));
    };
    return Work(wait, [operation] { return operation->work.is_done(); });
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<CommMeter> meter_;
  GroupLog log_;
};

}  // namespace

std::string_view name_of(CommOp op) {
  return names_of(op).begin;
}

i64 CommMeter::total_bytes() const {
  i64 bytes = 0;
  for (const Count& count : by_op) bytes += count.bytes;
  return bytes;
}

std::unique_ptr<Communicator> make_metered(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter,
                                           GroupLog log) {
  return std::make_unique<MeteredCommunicator>(std::move(inner), std::move(meter), std::move(log));
}

}  // namespace mcpp
