#include "megatron_cpp/logging/clock_offset.h"

#include <chrono>
#include <cmath>
#include <limits>

namespace mcpp {
namespace {

constexpr int kRounds = 16;  // the fastest is used

/// Pair of values that is sent back and forth.
class ClockMessage {
 public:
  double& operator[](int i) { return tensor_.data<double>()[i]; }
  void send_to(Communicator& world, int rank) { world.send(tensor_, rank).wait(); }
  void receive_from(Communicator& world, int rank) { world.recv(tensor_, rank).wait(); }
  void send_to_all(Communicator& world) { world.broadcast(tensor_, 0).wait(); }

 private:
  CpuDevice memory_;
  Tensor tensor_ = Tensor::zeros({2}, DType::F64, memory_, MemoryClass::Other);
};

void measure_rank(Communicator& world, int rank, ClockMessage& message) {
  double min_round_trip = std::numeric_limits<double>::infinity(), offset = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double sent_at = steady_seconds();
    message.send_to(world, rank);
    message.receive_from(world, rank);
    const double received_at = steady_seconds();
    if (received_at - sent_at >= min_round_trip) continue;
    min_round_trip = received_at - sent_at;
    offset = (sent_at + received_at) / 2 - message[0];
  }
  message[0] = offset;
  message[1] = min_round_trip / 2;
  message.send_to(world, rank);
}

void reply(Communicator& world, ClockMessage& message) {
  for (int round = 0; round < kRounds; ++round) {
    message.receive_from(world, 0);
    message[0] = steady_seconds();
    message.send_to(world, 0);
  }
  message.receive_from(world, 0);
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset measure_clock_offset(Communicator& world) {
  ClockMessage message;
  ClockOffset found;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) measure_rank(world, rank, message);
  } else {
    reply(world, message);
    found.uncertainty = message[1];
    // Processes of one machine share a clock; offsets this small do not happen by chance between machines.
    found.seconds = std::abs(message[0]) <= message[1] ? 0 : message[0];
  }
  message[0] = steady_seconds();
  message.send_to_all(world);
  found.reference = message[0];
  found.at = steady_seconds();
  return found;
}

double to_rank0_clock(double moment, const ClockOffset& before, const ClockOffset& after) {
  const double drift = after.seconds - before.seconds, apart = after.at - before.at;
  if (std::abs(drift) <= before.uncertainty + after.uncertainty || apart <= 0)
    return moment + (after.uncertainty < before.uncertainty ? after : before).seconds;
  return moment + before.seconds + drift * (moment - before.at) / apart;
}

}  // namespace mcpp
