// What the suite in communicator_test.cpp runs on. Each test program defines backends().
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace mcpp::test {

/// The body of a test as one rank sees it.
using RankBody = std::function<void(Communicator& world, Device& device)>;

struct Backend {
  std::string name;
  std::function<void(const RankBody&)> run;
  std::string missing = {};  ///< why it cannot run here; empty: it can
};

std::vector<Backend> backends();

}  // namespace mcpp::test
