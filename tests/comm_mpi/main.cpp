// Runs the suite of communicator_test.cpp over MPI. Started by mpirun: all ranks run each test together.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "comm/staged.h"
#include "tensor/cpu/shared_arena.h"
#include "tests/comm/backend.h"
#include "tests/comm_mpi/session.h"

namespace mcpp::test {
namespace {

// Session of this process. GoogleTest calls backends() without arguments, so main stores it here.
const MpiSession* current_session = nullptr;

/// Rank 1 fails while the others wait for it.
void fail_with_sum_in_flight(const MpiSession& session) {
  const auto world = session.make_world();
  CpuDevice device;
  Tensor t = Tensor::zeros({1000}, DType::F32, device);
  world->all_reduce(t, ReduceOp::Sum).wait();
  if (world->rank() == 1) fail(ExitCode::TrainingFailed, "planned failure of rank 1");
  world->all_reduce(t, ReduceOp::Sum).wait();
}

/// Fails like fail_with_sum_in_flight(), but between nodes: with a sum in flight that rank 2 does not start, a message
/// that no rank receives, and an unmatched receive into freed memory.
void fail_between_nodes(const MpiSession& session) {
  const auto world = session.make_world([](int rank) { return rank; });
  CpuDevice device;
  Tensor t = Tensor::zeros({1000}, DType::F32, device);
  world->all_reduce(t, ReduceOp::Sum).wait();
  if (world->rank() == 2) world->recv(t, 1).wait();
  const Tensor large = Tensor::zeros({1 << 20}, DType::F32, device);
  Tensor other = Tensor::zeros({1 << 20}, DType::F32, device);
  Work message, awaited;
  if (world->rank() == 1) message = world->send(large, 0), awaited = world->recv(other, 0);
  const Work work = world->all_reduce(t, ReduceOp::Sum);
  if (world->rank() == 1) fail(ExitCode::TrainingFailed, "planned failure of rank 1");
}

/// Rank 1 expects a message of a different size than rank 0 sends, large enough to be requested.
void send_wrong_size(const MpiSession& session, i64 sent, i64 expected) {
  const auto world = session.make_world([](int rank) { return rank; });
  CpuDevice device;
  Tensor t = Tensor::zeros({1 << 20}, DType::F32, device);
  if (world->rank() == 0) world->send(t.flat(0, sent), 1).wait();
  Tensor to = t.flat(0, expected);
  if (world->rank() == 1) world->recv(to, 0).wait();
  world->barrier();
}

/// An exchange that fails is reported by every operation started after it, whichever is awaited first.
void exchange_wrong_size(const MpiSession& session) {
  const auto world = session.make_world([](int rank) { return rank; });
  CpuDevice device;
  const Tensor in = Tensor::zeros({20}, DType::F32, device);
  Tensor out = Tensor::like(in), sum = Tensor::like(in);
  const i64 sent = 10, expected = world->rank() == 1 ? 20 : 10;
  const Part none{0, 0}, send{0, sent}, receive{0, expected};
  const bool is_first = world->rank() == 0;
  Work exchange = world->all_to_all_v(in, std::array{is_first ? none : send, is_first ? send : none}, out,
                                      std::array{is_first ? none : receive, is_first ? receive : none});
  world->all_reduce(sum, ReduceOp::Sum).wait();
  exchange.wait();
}

int run(const MpiSession& session, int argc, char** argv) {
  current_session = &session;
  const std::string task = argc > 1 ? argv[1] : "";
  if (task == "--fail_with_sum_in_flight") fail_with_sum_in_flight(session);
  if (task == "--fail_between_nodes") fail_between_nodes(session);
  if (task == "--send_too_few_bytes") send_wrong_size(session, 2, 1 << 20);
  if (task == "--send_too_many_bytes") send_wrong_size(session, 1 << 20, 100);
  if (task == "--exchange_wrong_size") exchange_wrong_size(session);
  if (task == "--send_more_than_mpi_expects") send_wrong_size(session, 1 << 20, 2);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace

const MpiSession& session() {
  return *current_session;
}

void hide_arena(const CpuDevice& device) {
  const int other = ::open("/dev/null", O_RDWR);
  ASSERT_GE(::dup2(other, device.arena()->name().fd), 0);
  ::close(other);
}

std::vector<Backend> backends() {
  const auto on = [](std::function<int(int)> node_of) {
    return [node_of](const RankBody& body) {
      CpuDevice device;
      body(*session().make_world(node_of), device);
    };
  };
  // All ranks are on one node, and the ranks in `shares` let others map their tensors.
  const auto in_place = [](std::function<bool(int)> shares, bool is_hidden) {
    return [shares, is_hidden](const RankBody& body) {
      CpuDevice device({.shared = shares(session().rank())});
      if (is_hidden) hide_arena(device);
      body(*session().make_world(), device);
    };
  };
  const auto staged = [](std::function<int(int)> node_of) {
    return [node_of](const RankBody& body) {
      CpuDevice device;
      body(*make_staged_communicator(session().make_world(node_of), device), device);
    };
  };
  const auto all = [](int) { return true; };
  return {{"one_node", on({})},
          {"in_place", in_place(all, false)},
          {"in_place_except_rank_1", in_place([](int rank) { return rank != 1; }, false)},
          {"in_place_unmappable", in_place(all, true)},
          {"staged", staged({})},
          {"staged_one_rank_per_node", staged([](int rank) { return rank; })},
          {"one_rank_per_node", on([](int rank) { return rank; })},
          {"two_ranks_per_node", on([](int rank) { return rank / 2; })},
          {"interleaved_on_two_nodes", on([](int rank) { return rank % 2; })},
          {"nodes_of_different_size", on([](int rank) { return rank == 1; })},
          {"two_ranks_then_one_per_node", on([](int rank) { return std::max(rank - 1, 0); })}};
}

}  // namespace mcpp::test

int main(int argc, char** argv) {
  std::unique_ptr<mcpp::MpiSession> session;
  try {
    session = std::make_unique<mcpp::MpiSession>(mcpp::read_launcher(std::getenv));
    return mcpp::test::run(*session, argc, argv);
  } catch (const mcpp::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    const int code = static_cast<int>(error.code());
    if (session) session->abort(code);
    return code;
  }
}
