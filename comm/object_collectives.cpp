#include "comm/object_collectives.h"

#include <algorithm>
#include <cstring>

namespace mcpp {
namespace {

/// Gathers the equally sized tensors of all ranks, in rank order.
Tensor gather(const Tensor& local, Communicator& group) {
  Tensor all = Tensor::like(local, {local.numel() * group.size()});
  group.all_gather(local, all).wait();
  return all;
}

}  // namespace

std::vector<std::string> all_gather_strings(std::string_view text, Communicator& group) {
  if (group.size() == 1) return {std::string(text)};
  CpuDevice host;
  const auto ranks = static_cast<std::size_t>(group.size());

  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  *length.data<i64>() = static_cast<i64>(text.size());
  const Tensor lengths = gather(length, group);
  const i64* sizes = lengths.data<i64>();

  // The bytes are sent as 32-bit integers, padded to the longest text.
  const i64 words = *std::max_element(sizes, sizes + ranks) / 4 + 1;
  Tensor padded = Tensor::empty({words}, DType::I32, host, MemoryClass::Other);
  std::memset(padded.raw(), 0, static_cast<std::size_t>(padded.bytes()));
  std::memcpy(padded.raw(), text.data(), text.size());
  const Tensor texts = gather(padded, group);

  std::vector<std::string> result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const char* begin = static_cast<const char*>(texts.raw()) + static_cast<i64>(rank) * words * 4;
    result.emplace_back(begin, static_cast<std::size_t>(sizes[rank]));
  }
  return result;
}

std::vector<std::string> run_on_all_ranks(Communicator& group, const std::function<std::string()>& f) {
  // The first byte is the status: 0, or the exit code of an error whose message follows.
  std::string outcome;
  try {
    outcome = '\0' + f();
  } catch (const Error& error) {
    outcome = static_cast<char>(error.code()) + std::string(error.what());
  } catch (const std::exception& error) {
    outcome = static_cast<char>(ExitCode::Internal) + std::string(error.what());
  }
  std::vector<std::string> results = all_gather_strings(outcome, group);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const auto code = static_cast<ExitCode>(results[rank][0]);
    const std::string message = results[rank].substr(1);
    if (code != ExitCode::Done) fail(code, group.size() > 1 ? str("rank ", rank, ": ") : "", message);
    results[rank] = message;
  }
  return results;
}

std::string broadcast_from_rank0(Communicator& group, const std::function<std::string()>& f) {
  return run_on_all_ranks(group, [&] { return group.rank() == 0 ? f() : std::string(); })[0];
}

}  // namespace mcpp
