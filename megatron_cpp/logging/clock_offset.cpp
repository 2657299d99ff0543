#include "megatron_cpp/logging/clock_offset.h"

#include <chrono>
#include <cmath>
#include <limits>

namespace mcpp {
namespace {

constexpr int kRounds = 16;  // the fastest is used

/// Pair of values that is sent back and forth.
class Ball {
 public:
  double& operator[](int i) { return tensor_.data<double>()[i]; }
  void throw_to(Communicator& world, int rank) { world.send(tensor_, rank).wait(); }
  void catch_from(Communicator& world, int rank) { world.recv(tensor_, rank).wait(); }
  void throw_to_all(Communicator& world) { world.broadcast(tensor_, 0).wait(); }

 private:
  CpuDevice memory_;
  Tensor tensor_ = Tensor::zeros({2}, DType::F64, memory_, MemoryClass::Other);
};

void ask(Communicator& world, int rank, Ball& ball) {
  double quickest = std::numeric_limits<double>::infinity(), offset = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double thrown = steady_seconds();
    ball.throw_to(world, rank);
    ball.catch_from(world, rank);
    const double caught = steady_seconds();
    if (caught - thrown >= quickest) continue;
    quickest = caught - thrown;
    offset = (thrown + caught) / 2 - ball[0];
  }
  ball[0] = offset;
  ball[1] = quickest / 2;
  ball.throw_to(world, rank);
}

void answer(Communicator& world, Ball& ball) {
  for (int round = 0; round < kRounds; ++round) {
    ball.catch_from(world, 0);
    ball[0] = steady_seconds();
    ball.throw_to(world, 0);
  }
  ball.catch_from(world, 0);
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset compare_clocks(Communicator& world) {
  Ball ball;
  ClockOffset found;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) ask(world, rank, ball);
  } else {
    answer(world, ball);
    found.uncertainty = ball[1];
    // Processes of one machine share a clock; offsets this small do not happen by chance between machines.
    found.seconds = std::abs(ball[0]) <= ball[1] ? 0 : ball[0];
  }
  ball[0] = steady_seconds();
  ball.throw_to_all(world);
  found.reference = ball[0];
  found.at = steady_seconds();
  return found;
}

double on_first_rank(double moment, const ClockOffset& before, const ClockOffset& after) {
  const double drift = after.seconds - before.seconds, apart = after.at - before.at;
  if (std::abs(drift) <= before.uncertainty + after.uncertainty || apart <= 0)
    return moment + (after.uncertainty < before.uncertainty ? after : before).seconds;
  return moment + before.seconds + drift * (moment - before.at) / apart;
}

}  // namespace mcpp
