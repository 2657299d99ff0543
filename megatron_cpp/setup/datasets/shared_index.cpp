#include "megatron_cpp/setup/datasets/shared_index.h"

#include <chrono>
#include <future>
#include <thread>

#include "checkpoint/folder/exchange.h"

namespace mcpp {
namespace {

/// Interval at which a building rank wakes up the others.
constexpr std::chrono::milliseconds kBeat{200};

struct News {
  bool is_busy = false, is_signalled = false;
};

/// Returns, for each flag, whether it is set on any rank of the group.
News on_any(News mine, Communicator& group) {
  CpuDevice host;
  Tensor both = Tensor::empty({2}, DType::F32, host, MemoryClass::Other);
  both.data<float>()[0] = mine.is_busy ? 1 : 0;
  both.data<float>()[1] = mine.is_signalled ? 1 : 0;
  group.all_reduce(both, ReduceOp::Max).wait();
  return {both.data<float>()[0] != 0, both.data<float>()[1] != 0};
}

}  // namespace

bool SharedIndexRanks::is_one_of(Who who) const {
  return who == Who::All || (who == Who::First ? world_.rank() : node_.rank()) == 0;
}

bool SharedIndexRanks::run(Who who, const std::function<bool(const IndexBuild&)>& f) const {
  const int copies = who == Who::All ? node_.size() : 1;
  std::future<bool> result;
  std::jthread worker;  // declared last: on unwinding it stops f, so no rank waits for the rest of the build
  if (is_one_of(who)) {
    std::packaged_task<bool(std::stop_token)> work([&](std::stop_token stop) { return f({copies, std::move(stop)}); });
    result = work.get_future();
    worker = std::jthread(std::move(work));
  }
  for (News news{.is_busy = true}; news.is_busy;) {
    const bool is_busy = result.valid() && result.wait_for(kBeat) != std::future_status::ready;
    news = on_any({is_busy, signal_() != 0}, world_);
    if (news.is_signalled) worker.request_stop();
  }
  bool mine = false;
  run_together(world_, [&] {
    if (result.valid()) mine = result.get();
    return std::string();
  });
  return from_first(node_, [&] { return str(mine); }) == str(true);
}

}  // namespace mcpp
