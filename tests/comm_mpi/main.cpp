// The suite of communicator_test.cpp over MPI. Started by mpirun: every rank runs every test, in step.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "comm/mpi.h"
#include "tests/comm/backend.h"

namespace mcpp::test {
namespace {

// The session of this process. GoogleTest asks for the backends without arguments, so main leaves it here.
const MpiSession* current_session = nullptr;

/// Rank 1 ends with an error while the others wait for it.
void fail_in_one_rank(const MpiSession& session) {
  const auto world = session.world();
  CpuDevice device;
  Tensor t = Tensor::zeros({1000}, DType::F32, device);
  world->all_reduce(t, ReduceOp::Sum).wait();
  if (world->rank() == 1) fail(ExitCode::TrainingFailed, "planned failure of rank 1");
  world->all_reduce(t, ReduceOp::Sum).wait();
}

int run(const MpiSession& session, int argc, char** argv) {
  current_session = &session;
  if (argc > 1 && std::string(argv[1]) == "--fail_in_one_rank") fail_in_one_rank(session);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace

std::vector<Backend> backends() {
  const auto on = [](std::function<int(int)> node_of) {
    return [node_of](const RankBody& body) {
      CpuDevice device;
      body(*current_session->world(node_of), device);
    };
  };
  return {{"one_node", on({})},
          {"each_rank_a_node", on([](int rank) { return rank; })},
          {"two_ranks_a_node", on([](int rank) { return rank / 2; })},
          {"ranks_dealt_to_two_nodes", on([](int rank) { return rank % 2; })},
          {"nodes_of_unlike_size", on([](int rank) { return rank == 1; })}};
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
