// Multi-latent attention (DeepSeek-V2, 2024): keys and values are projections of one low-rank vector per token, the
// latent. A rotary key, which all heads share, is appended to the key of each head. The keys have the names of
// Megatron-LM.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"

namespace mcpp {

struct MultiLatentConfig {
  bool is_used = false;
  i64 q_lora_rank = 0;
  i64 kv_lora_rank = 512;
  i64 qk_head_dim = 128;
  i64 qk_pos_emb_head_dim = 64;
  i64 v_head_dim = 128;
  double latent_norm_epsilon = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("multi_latent_attention", self.is_used,
          "use attention whose keys and values are projections of a low-rank latent of each token (DeepSeek-V2)");
    visit("q_lora_rank", self.q_lora_rank,
          "multi-latent attention: width of the latent of queries; 0 = queries are projected directly",
          between(0, 1e6));
    visit("kv_lora_rank", self.kv_lora_rank, "multi-latent attention: width of the latent of keys and values",
          between(1, 1e6));
    visit("qk_head_dim", self.qk_head_dim, "multi-latent attention: channels without RoPE of a query or key head",
          between(1, 1e5));
    visit("qk_pos_emb_head_dim", self.qk_pos_emb_head_dim,
          "multi-latent attention: channels with RoPE of a query or key head", between(2, 1e5));
    visit("v_head_dim", self.v_head_dim, "multi-latent attention: width of a value head", between(1, 1e5));
    visit("latent_norm_epsilon", self.latent_norm_epsilon,
          "multi-latent attention: epsilon of the norms of latents; 0 = norm_epsilon", at_least(0));
  }

  bool operator==(const MultiLatentConfig&) const = default;

  /// Returns the width of a query or key head.
  i64 query_dim() const { return qk_head_dim + qk_pos_emb_head_dim; }
  /// Returns the width in which key and value heads are stored, which is the larger of both.
  i64 head_dim() const { return query_dim() > v_head_dim ? query_dim() : v_head_dim; }
  /// Appends a message to `errors` for each key that is set although multi-latent attention is off.
  void add_unread_keys(std::vector<std::string>& errors) const;
};

}  // namespace mcpp
