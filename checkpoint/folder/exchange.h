// Collectives over strings and results, with errors of any rank raised on all ranks.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Returns the texts of all ranks, by rank. Texts may differ in length. Collective.
std::vector<std::string> all_gather_text(std::string_view mine, Communicator& group);

/// Runs f on every rank and returns all results, by rank. If f throws on any rank, all ranks throw that error with the
/// failed rank's number, so no rank blocks. Collective.
std::vector<std::string> run_together(Communicator& group, const std::function<std::string()>& f);

/// Runs f on rank 0 only and returns its result on every rank. If f throws, all ranks throw. Collective.
std::string from_first(Communicator& group, const std::function<std::string()>& f);

}  // namespace mcpp
