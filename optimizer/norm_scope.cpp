#include "optimizer/norm_scope.h"

#include <utility>

namespace mcpp {

NormScope make_norm_scope(Communicator& model, Communicator* shard, int tp_rank,
                          std::function<bool(const Param&)> is_copy) {
  NormScope scope{.groups = {&model}, .counts = {}};
  if (shard) scope.groups.insert(scope.groups.begin(), shard);
  scope.counts = [tp_rank, is_copy = std::move(is_copy)](const Param& param) {
    return param.stands_for_copies(tp_rank) && !(is_copy && is_copy(param));
  };
  return scope;
}

}  // namespace mcpp
