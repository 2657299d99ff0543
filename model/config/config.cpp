#include "model/config/config.h"

#include "base/strings.h"

namespace mcpp {

std::vector<std::string> ModelConfig::conflicts() const {
  std::vector<std::string> found;
  if (kv_channels == 0 && hidden_size % num_attention_heads != 0) {
    found.push_back(str("model.num_attention_heads: hidden_size ", hidden_size, " is not divisible by ",
                        num_attention_heads, " heads; change one of them or set model.kv_channels"));
  }
  if (num_attention_heads % query_groups() != 0) {
    found.push_back(str("model.num_query_groups: ", num_attention_heads, " heads cannot be shared evenly by ",
                        query_groups(), " groups; use a divisor of num_attention_heads"));
  }
  if (position_embedding_type == PositionEmbedding::Rope && rotary_dim() == 0) {
    found.push_back(
        str("model.rotary_percent: ", rotary_percent, " of ", head_dim(), " channels leaves nothing to rotate"));
  }
  if (position_embedding_type != PositionEmbedding::Rope) {
    const ModelConfig defaults;
    const auto only_with_rope = [&](bool is_set, const char* key) {
      if (is_set) found.push_back(str("model.", key, ": only read when position_embedding_type is \"rope\""));
    };
    only_with_rope(rotary_base != defaults.rotary_base, "rotary_base");
    only_with_rope(rotary_percent != defaults.rotary_percent, "rotary_percent");
  }
  if (max_position_embeddings > 0 && max_position_embeddings < seq_length) {
    found.push_back(
        str("model.max_position_embeddings: ", max_position_embeddings, " is below seq_length ", seq_length));
  }
  return found;
}

}  // namespace mcpp
