#include "parallel/ep/token_dispatcher.h"

#include "parallel/ep/all_gather_dispatcher.h"
#include "parallel/ep/all_to_all_dispatcher.h"
#include "parallel/ep/padded_dispatcher.h"
#include "tensor/integers.h"

namespace mcpp {

ExpertChoice agree_on(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel) {
  const auto ranks = static_cast<i64>(parallel.exchange ? parallel.exchange->size() : 1);
  const HostValues<i32> choices(experts);
  const std::vector<i32> counts = count_choices(std::span(choices.begin(), choices.end()), num_experts);
  const Tensor own = integers(counts, {1, num_experts}, experts.device());
  if (ranks == 1) return {experts, own};
  Tensor all = Tensor::empty({ranks, num_experts}, DType::I32, experts.device());
  parallel.exchange->all_gather(own, all).wait();
  return {experts, all};
}

std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       i64 padded_rows) {
  std::unique_ptr<TokenDispatcher> dispatcher;
  if (parallel.dispatcher == TokenDispatcherType::AllGather && parallel.exchange && parallel.exchange->size() > 1)
    dispatcher = std::make_unique<AllGatherDispatcher>(choice, parallel);
  else
    dispatcher = std::make_unique<AllToAllDispatcher>(choice, parallel);
  if (padded_rows == 0) return dispatcher;
  return std::make_unique<PaddedDispatcher>(std::move(dispatcher), padded_rows, choice.experts.device());
}

}  // namespace mcpp
