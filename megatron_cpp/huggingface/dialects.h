// What config.json is written in: the keys of gpt2, of gpt_neox, and of llama and all that are like it.
#pragma once
#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

// As Family::parse and Family::write.
ModelConfig parse_gpt2(const ConfigJson& config, const Family& family);
OrderedJson write_gpt2(const ModelConfig& model, const Family& family);
ModelConfig parse_gpt_neox(const ConfigJson& config, const Family& family);
OrderedJson write_gpt_neox(const ModelConfig& model, const Family& family);
ModelConfig parse_llama(const ConfigJson& config, const Family& family);
OrderedJson write_llama(const ModelConfig& model, const Family& family);

}  // namespace mcpp
