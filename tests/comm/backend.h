// Backends of the test suite in communicator_test.cpp. Each test program defines backends().
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp::test {

/// Body of a test, run by each rank.
using RankBody = std::function<void(Communicator& world, Device& device)>;

struct Backend {
  std::string name;
  std::function<void(const RankBody&)> run;
  std::string missing = {};  ///< reason why the backend cannot run on this host; empty if it can
};

std::vector<Backend> backends();

}  // namespace mcpp::test
