#include "megatron_cpp/setup/datasets/shared_index.h"

#include <chrono>
#include <future>
#include <thread>

#include "comm/object_collectives.h"

namespace mcpp {
namespace {

/// Interval at which a building rank wakes up the others.
constexpr std::chrono::milliseconds kExchangeInterval{200};

struct RankFlags {
  bool is_busy = false, has_signal = false;
};

/// Returns, for each flag, whether it is set on any rank of the group.
RankFlags reduce_flags(RankFlags local, Communicator& group) {
  CpuDevice host;
  Tensor both = Tensor::empty({2}, DType::F32, host, MemoryClass::Other);
  both.data<float>()[0] = local.is_busy ? 1 : 0;
  both.data<float>()[1] = local.has_signal ? 1 : 0;
  group.all_reduce(both, ReduceOp::Max).wait();
  return {both.data<float>()[0] != 0, both.data<float>()[1] != 0};
}

}  // namespace

bool SharedIndexRanks::runs_on_this_rank(RankScope who) const {
  return who == RankScope::All || (who == RankScope::First ? world_.rank() : node_.rank()) == 0;
}

bool SharedIndexRanks::run(RankScope who, const std::function<bool(const IndexBuildOptions&)>& f) const {
  const int copies = who == RankScope::All ? node_.size() : 1;
  std::future<bool> result;
  std::jthread worker;  // declared last: on unwinding it stops f, so no rank waits for the rest of the build
  if (runs_on_this_rank(who)) {
    std::packaged_task<bool(std::stop_token)> work([&](std::stop_token stop) { return f({copies, std::move(stop)}); });
    result = work.get_future();
    worker = std::jthread(std::move(work));
  }
  for (RankFlags news{.is_busy = true}; news.is_busy;) {
    const bool is_busy = result.valid() && result.wait_for(kExchangeInterval) != std::future_status::ready;
    news = reduce_flags({is_busy, signal_() != 0}, world_);
    if (news.has_signal) worker.request_stop();
  }
  bool local = false;
  run_on_all_ranks(world_, [&] {
    if (result.valid()) local = result.get();
    return std::string();
  });
  return broadcast_from_rank0(node_, [&] { return str(local); }) == str(true);
}

}  // namespace mcpp
