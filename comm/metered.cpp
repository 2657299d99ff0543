#include "comm/metered.h"

#include <chrono>

namespace mcpp {
namespace {

/// Adds the time from here to its end, also when that is an error.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

class MeteredCommunicator final : public Communicator {
 public:
  MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter)
      : inner_(std::move(inner)), meter_(std::move(meter)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Work all_reduce(Tensor& t, ReduceOp op) override {
    return start(CommOp::AllReduce, share_of_others(2 * t.bytes()), [&] { return inner_->all_reduce(t, op); });
  }
  Work all_gather(const Tensor& shard, Tensor& full) override {
    return start(CommOp::AllGather, share_of_others(full.bytes()), [&] { return inner_->all_gather(shard, full); });
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    return start(CommOp::ReduceScatter, share_of_others(full.bytes()),
                 [&] { return inner_->reduce_scatter(full, shard); });
  }
  Work broadcast(Tensor& t, int root) override {
    return start(CommOp::Broadcast, size() > 1 ? t.bytes() : 0, [&] { return inner_->broadcast(t, root); });
  }
  Work all_to_all(const Tensor& in, Tensor& out) override {
    return start(CommOp::AllToAll, share_of_others(in.bytes()), [&] { return inner_->all_to_all(in, out); });
  }
  Work send(const Tensor& t, int destination) override {
    return start(CommOp::Send, t.bytes(), [&] { return inner_->send(t, destination); });
  }
  Work recv(Tensor& t, int source) override {
    return start(CommOp::Recv, 0, [&] { return inner_->recv(t, source); });
  }
  void barrier() override {
    const Stopwatch watch(meter_->exposed_seconds);
    inner_->barrier();
    ++(*meter_)[CommOp::Barrier].calls;
  }

  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  void abort(int exit_code) noexcept override { inner_->abort(exit_code); }

 private:
  i64 share_of_others(i64 bytes) const { return bytes * (size() - 1) / size(); }

  /// Calls f, which starts the operation; one that is refused is not counted.
  template <class F>
  Work start(CommOp op, i64 bytes, const F& f) {
    const Stopwatch watch(meter_->exposed_seconds);
    const auto work = std::make_shared<Work>(f());
    ++(*meter_)[op].calls;
    (*meter_)[op].bytes += bytes;
    return Work([work, meter = meter_] {
      const Stopwatch waiting(meter->exposed_seconds);
      work->wait();
    });
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<CommMeter> meter_;
};

}  // namespace

i64 CommMeter::total_bytes() const {
  i64 bytes = 0;
  for (const Count& count : by_op) bytes += count.bytes;
  return bytes;
}

std::unique_ptr<Communicator> make_metered(std::unique_ptr<Communicator> inner, std::shared_ptr<CommMeter> meter) {
  return std::make_unique<MeteredCommunicator>(std::move(inner), std::move(meter));
}

}  // namespace mcpp
