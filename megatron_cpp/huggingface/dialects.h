// Dialects of config.json: the keys of gpt2, of gpt_neox, and of llama and similar types.
#pragma once
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

// Implementations of Family::parse and Family::write.
ModelConfig parse_gpt2(const ConfigJson& config, const Family& family);
OrderedJson write_gpt2(const ModelConfig& model, const Family& family);
ModelConfig parse_gpt_neox(const ConfigJson& config, const Family& family);
OrderedJson write_gpt_neox(const ModelConfig& model, const Family& family);
ModelConfig parse_llama(const ConfigJson& config, const Family& family);
OrderedJson write_llama(const ModelConfig& model, const Family& family);

}  // namespace mcpp
