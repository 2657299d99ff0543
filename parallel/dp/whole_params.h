// Stages 0, 1 and 2: every rank holds all weights. Where each updates only a part of them, publish() gathers the parts.
#pragma once
#include "parallel/dp/store.h"
#include "parallel/dp/wire.h"

namespace mcpp {

class WholeParams final : public ParamStore {
 public:
  WholeParams(const StoreContext& context, const Wire& wire, DType dtype, bool overlap);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t) override {}
  void publish() override;
  void finish_gathers() override;
  Tensor shard(std::size_t bucket) const override;

 private:
  /// New weights on their way.
  struct Gather {
    Tensor message;  // none is left once it was read
    Work work;
  };

  Tensor whole(std::size_t bucket) const;
  void finish(std::size_t bucket);

  StoreContext context_;
  Wire wire_;
  bool overlap_;
  Tensor flat_;
  Tensor shards_;                // where weights travel packed: what is updated, in full
  std::vector<Gather> gathers_;  // by bucket
};

}  // namespace mcpp
