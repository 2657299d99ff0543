// Fuzz targets for short texts: settings, lists, choices and templates.
#include <numeric>

#include "base/check.h"
#include "base/json.h"
#include "data/dataset/blend.h"
#include "data/jinja/interpreter.h"
#include "megatron_cpp/config/batch_size_schedule.h"
#include "parallel/stages.h"
#include "tensor/gemm_algo_cache.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {

void batch_size_schedule(std::string_view input) {
  const BatchSizeSchedule schedule = parse_batch_size_schedule(split(input, '\n'), 1024, 4);
  check_input(schedule.problems.empty(), join(schedule.problems, "\n"));
  if (schedule.steps.empty()) return;
  for (const i64 samples : {i64{0}, i64{1'000'000'007}, i64{1} << 62}) {
    const FullBatches done = full_batches(schedule.steps, samples);
    MCPP_CHECK(0 <= done.samples && done.samples <= samples && done.iterations <= done.samples, done.samples);
    MCPP_CHECK(batch_size_at(schedule.steps, samples) % 4 == 0);
  }
}

void blend(std::string_view input) {
  const std::vector<std::string> entries = split(input, '\n');
  const BlendList list = parse_blend_list(entries, "data.data_path");
  MCPP_CHECK(!list.has_weights() || list.weights.start.size() == list.prefixes.size());
  MCPP_CHECK(list.weights.is_constant() || list.weights.end.size() == list.prefixes.size());
  if (!list.has_weights()) return;
  const BlendWeights weights = list.weights.normalized();
  const std::vector<double> shares = weights.mean();
  for (const double share : shares) {
    MCPP_CHECK(0 <= share && share <= 1, share, " is not between 0 and 1");
    MCPP_CHECK(0 <= blend_target_with_surplus(1'000'000, share) && blend_target(1'000'000, share) <= 1'000'000);
  }
  const BlendIndices indices = build_blend_indices(weights, 64);
  for (const u32 part : indices.dataset_index) MCPP_CHECK(part < shares.size());
}

void chat_template(std::string_view input) {
  static const jinja::Value variables = jinja::Value::of_json(OrderedJson::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "caf\u00e9?\n"},
                 {"role": "assistant", "content": "<think>hm</think>4", "tool_calls": [
                   {"type": "function", "function": {"name": "f", "arguments": {"x": 1.5, "y": [true, null]}}}]}],
    "tools": [{"name": "f", "parameters": {}}], "documents": null, "add_generation_prompt": true, "bos_token": "<s>"})"));
  // Sanitizers make the interpreter slower, so that a smaller budget must last as long.
  constexpr i64 kMaxWork = jinja::Template::kMaxWork / 20;
  const jinja::Template parsed{std::string(input), "template"};
  const jinja::Rendering rendering = parsed.render(variables.dict(), kMaxWork);
  std::size_t end = 0;
  for (const auto& [first, last] : rendering.generated) {
    MCPP_CHECK(end <= first && first <= last && last <= rendering.text.size(), "[", first, ", ", last, ")");
    end = last;
  }
  MCPP_CHECK(rendering.generated.empty() || parsed.marks_generation());
  MCPP_CHECK(parsed.render(variables.dict(), kMaxWork).text == rendering.text, "two renderings differ");
}

void gemm_choices(std::string_view input) {
  const GemmAlgoCache choices = gemm_choices_from_text(input, "gpu", "choices.txt");
  MCPP_CHECK(gemm_choices_from_text(to_text(choices, "gpu"), "gpu", "again") == choices,
             "the round trip changed the choices");
}

void pipeline_layout(std::string_view input) {
  const std::string text(input);
  for (const i64 ranks : {1, 2, 4}) {
    const Layout layout{.pp = ranks, .stages = text};
    if (!stage_conflicts(layout, 8).empty()) continue;
    const std::vector<StageContents> stages = split_stages(layout, 8);
    i64 layers = 0, norms = 0;
    for (const StageContents& stage : stages) layers += stage.num_layers(), norms += stage.has_final_norm ? 1 : 0;
    MCPP_CHECK(layers == 8 && static_cast<i64>(stages.size()) == ranks, layers, " layers");
    MCPP_CHECK(norms == 1 && stages[static_cast<std::size_t>(final_norm_stage(layout))].has_final_norm, norms,
               " norms");
  }
}

}  // namespace mcpp::fuzz
