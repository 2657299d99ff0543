// Ranks telling one another how their part went.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// The text of every rank, by rank, on every rank. Texts may differ in length.
std::vector<std::string> all_gather_text(std::string_view mine, Communicator& group);

/// Every rank runs f; all get all results, by rank. When f throws somewhere, every rank throws that error, with the
/// rank's number: nobody waits for a rank that failed.
std::vector<std::string> run_together(Communicator& group, const std::function<std::string()>& f);

/// What f() gives on rank 0, on every rank; the others do not call it. An error of it is thrown on all.
std::string from_first(Communicator& group, const std::function<std::string()>& f);

}  // namespace mcpp
