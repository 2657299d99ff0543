// Fuzz targets for the configuration of a run and of a model.
#include "base/check.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "parallel/stages.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {
namespace {

/// Derives everything that a plan contains, on one rank and on the layout's number of ranks.
void check_config(const Config& config) {
  MCPP_CHECK(print_config(parse_config(print_config(config), "again")) == print_config(config),
             "the round trip changed the configuration");
  MCPP_CHECK(!config.batch_sizes().empty() && config.training_end().iterations >= 0 &&
             config.training_end().samples >= 0);
  const i64 ranks = config.parallel.tp * config.parallel.pp;
  for (const i64 world : {i64{1}, ranks}) {
    if (layout_problems(config, static_cast<int>(world)).empty()) {
      MCPP_CHECK(microbatches_per_step(config, static_cast<int>(world)) > 0);
      split_stages(config.parallel, config.model.num_layers);
    }
  }
}

}  // namespace

void arguments(std::string_view input) {
  check_config(parse_config("model.vocab_size = 512\ntraining.train_iters = 1\n", "run.toml", split(input, '\n')));
}

void config(std::string_view input) {
  check_config(parse_config(input, "run.toml"));
}

void toml_nesting(std::string_view input) {
  if (input.empty()) return;
  const int times = 1 << (static_cast<unsigned char>(input[0]) % 18);
  std::string text;
  for (int i = 0; i < times; ++i) text += input.substr(1);
  check_config(parse_config(text + "a = 1\n[model]\nvocab_size = 512\n", "run.toml"));
}

void huggingface_config(std::string_view input) {
  for (const ScaleBlock& block : parse_quantization(input, "config.json").blocks)
    MCPP_CHECK(block.rows >= 0 && block.columns >= 0);
  const ModelConfig model = parse_huggingface_config(input, "config.json");
  const std::string text = mcpp::huggingface_config(model, DType::F32, {});
  MCPP_CHECK(mcpp::huggingface_config(parse_huggingface_config(text, "again"), DType::F32, {}) == text,
             "the round trip changed the configuration");
}

}  // namespace mcpp::fuzz
