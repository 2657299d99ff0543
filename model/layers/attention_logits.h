// Largest attention logits of a layer, and the weights that scale them.
#pragma once
#include <functional>
#include <vector>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "nn/param.h"

namespace mcpp {

/// Rows of a weight or bias that produce queries or keys.
struct QkRows {
  /// RotaryQuery: channels of a query that are multiplied by keys that all heads share (multi-latent attention).
  enum class Kind : u8 { Query, RotaryQuery, Key };
  Kind kind;
  i64 first, count;  ///< elements of the parameter's box
  i64 head;          ///< first head that reads the rows
  i64 group, heads;  ///< heads [group, group + heads) share the keys that belong to these rows
};
using QkRowVisitor = std::function<void(const Param& param, const QkRows& rows)>;

/// Recorder of the largest logit of each attention head of this rank in one layer.
class AttentionLogits {
 public:
  AttentionLogits(StoredRef<ModelContext> context, i64 num_heads)
      : context_(context), heads_(num_heads / context_.tp.size()), first_head_(context_.tp.rank() * heads_) {}

  /// Discards recorded values, and starts or stops recording the passes of training.
  void record(bool is_recording);
  /// Returns the tensor that receives the logits of a pass, or null if it is not recorded.
  Tensor* of_pass(const MicrobatchContext& microbatch) {
    return is_recording_ && microbatch.training ? &largest_ : nullptr;
  }
  i64 first_head() const { return first_head_; }
  /// Returns the largest logit of each head since record(), -infinity if there was none. Waits for the device.
  std::vector<double> values() const;

 private:
  const ModelContext& context_;
  i64 heads_, first_head_;
  bool is_recording_ = false;
  Tensor largest_;  // [heads], of the accumulate dtype; undefined before the first recording
};

}  // namespace mcpp
