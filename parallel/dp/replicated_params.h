// Replicated parameters, for stages 0, 1 and 2: every rank holds all weights. If each rank updates only a shard,
// publish() all-gathers the shards.
#pragma once
#include "parallel/dp/store.h"
#include "parallel/dp/weight_codec.h"

namespace mcpp {

class ReplicatedParams final : public ParamStore {
 public:
  ReplicatedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool overlap);

  void fetch(std::size_t bucket, Use use, bool is_nested) override;
  void drop(std::size_t) override {}
  void publish() override;
  void finish_gathers() override;
  Tensor shard(std::size_t bucket) const override;

 private:
  /// All-gather of new weights in flight.
  struct Gather {
    Tensor message;  // undefined once decoded
    Work work;
  };

  Tensor bucket_view(std::size_t bucket) const;
  void finish(std::size_t bucket);

  StoreContext context_;
  WeightCodec codec_;
  bool overlap_;
  Tensor flat_;
  Tensor shards_;                // with encoded weights: the full-precision shard that is updated
  std::vector<Gather> gathers_;  // by bucket
};

}  // namespace mcpp
