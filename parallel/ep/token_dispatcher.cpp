#include "parallel/ep/token_dispatcher.h"

#include "parallel/ep/all_gather_dispatcher.h"
#include "parallel/ep/all_to_all_dispatcher.h"
#include "parallel/ep/padded_dispatcher.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {
namespace {

i64 ranks_of_exchange(const ExpertParallel& parallel) {
  return parallel.exchange ? parallel.exchange->size() : 1;
}

bool gathers_tokens(const ExpertParallel& parallel) {
  return parallel.dispatcher == TokenDispatcherType::AllGather && ranks_of_exchange(parallel) > 1;
}

Tensor counts_of(const Tensor& experts, i64 num_experts) {
  Tensor counts = Tensor::empty({1, num_experts}, DType::I32, experts.device());
  ops::count_choices(experts, {0, num_experts}, counts);
  return counts;
}

}  // namespace

ExpertChoice exchange_choices(const Tensor& experts, i64 num_experts, const ExpertParallel& parallel) {
  const i64 ranks = ranks_of_exchange(parallel);
  const Tensor own = gathers_tokens(parallel) ? experts : counts_of(experts, num_experts);
  if (ranks == 1) return {experts, own, num_experts};
  Tensor all = Tensor::like(own, {ranks * own.dim(0), own.dim(1)});
  parallel.exchange->all_gather(own, all).wait();
  return {experts, all, num_experts};
}

std::unique_ptr<TokenDispatcher> make_token_dispatcher(const ExpertChoice& choice, const ExpertParallel& parallel,
                                                       i64 padded_rows) {
  std::unique_ptr<TokenDispatcher> dispatcher;
  if (gathers_tokens(parallel))
    dispatcher = std::make_unique<AllGatherDispatcher>(choice, parallel);
  else
    dispatcher = std::make_unique<AllToAllDispatcher>(choice, parallel);
  if (padded_rows == 0) return dispatcher;
  return std::make_unique<PaddedDispatcher>(std::move(dispatcher), padded_rows, choice.experts.device());
}

}  // namespace mcpp
