// Stages 0, 1 and 2: every rank holds all weights. Where each updates only a part of them, publish() gathers the parts.
#pragma once
#include "parallel/dp/store.h"

namespace mcpp {

class WholeParams final : public ParamStore {
 public:
  WholeParams(const StoreContext& context, DType dtype, bool overlap);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t) override {}
  void publish() override;
  void settle() override;
  Tensor shard(std::size_t bucket) const override { return context_.own_part(whole(bucket)); }

 private:
  Tensor whole(std::size_t bucket) const;

  StoreContext context_;
  bool overlap_;
  Tensor flat_;
  std::vector<Work> gathers_;  // by bucket
};

}  // namespace mcpp
