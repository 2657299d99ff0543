#include "parallel/tp/embedding.h"

#include "parallel/tp/split.h"
#include "tensor/ops/ops.h"

namespace mcpp {

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, i64 padded_vocab_size, i64 hidden_size,
                                               Communicator& tp, double init_std, bool sequence_parallel)
    : region_(tp, sequence_parallel),
      weight_(name + ".weight", split_box({padded_vocab_size, hidden_size}, 0, tp), Init::Normal, init_std) {}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens, MicrobatchContext& pass) {
  pass.save(this, tokens);
  const Tensor& table = weight_.value;
  Tensor y = Tensor::empty({tokens.dim(0), tokens.dim(1), table.dim(1)}, table.dtype(), table.device());
  ops::embedding(tokens, table, weight_.box.offset[0], y);
  return region_.sum(y).wait();
}

Tensor VocabParallelEmbedding::backward(const Tensor& dy, MicrobatchContext& pass) {
  const Tensor tokens = pass.take(this);
  pass.run_or_delay_wgrad([this, dy, tokens] {
    const Tensor whole_dy = region_.whole(dy).wait();
    weight_.add_grad(
        [&](Tensor& sum, float beta) { ops::embedding_backward(whole_dy, tokens, weight_.box.offset[0], sum, beta); });
  });
  return {};
}

ActivationPlacement VocabParallelEmbedding::output_placement(ActivationPlacement tokens) const {
  MCPP_CHECK(tokens == ActivationPlacement::Replicated, weight_.name, " takes all tokens, and is given some that are ",
             name_of(tokens));
  return region_.outside();
}

}  // namespace mcpp
