#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/stages.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<i64> layers(i64 num_layers, const Layout& layout) {
  std::vector<i64> counts;
  i64 next = 0;
  const std::vector<StageContents> stages = split_stages(layout, num_layers);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    EXPECT_EQ(stages[i].first_layer, next);
    EXPECT_EQ(stages[i].has_embedding, i == 0);
    EXPECT_EQ(stages[i].has_output, i + 1 == stages.size());
    EXPECT_EQ(stages[i].has_final_norm, static_cast<int>(i) == final_norm_stage(layout));
    next = stages[i].end_layer;
    counts.push_back(stages[i].num_layers());
  }
  EXPECT_EQ(next, num_layers);
  return counts;
}

TEST(PipelineStagesTest, SplitsLayersEvenly) {
  EXPECT_THAT(split_stages({}, 3), ElementsAre(StageContents{0, 3, true, true}));
  EXPECT_THAT(layers(12, {.pp = 4}), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(layers(12, {.pp = 2, .chunks = 3}), ElementsAre(2, 2, 2, 2, 2, 2));
  EXPECT_THAT(
      stage_conflicts({.pp = 4}, 10),
      ElementsAre(HasSubstr("num_layers = 10 is not a multiple of pipeline_model_parallel_size = 4; the nearest "
                            "multiples are 8 and 12; or set decoder_first_pipeline_num_layers")));
  EXPECT_THAT(
      stage_conflicts({.pp = 4, .chunks = 2}, 3),
      ElementsAre(HasSubstr("pipeline_model_parallel_size x num_virtual_stages_per_pipeline_rank = 8; the nearest "
                            "multiple is 8")));
}

TEST(PipelineStagesTest, SplitsWithFirstAndLastRankCounts) {
  EXPECT_THAT(layers(10, {.pp = 4, .first_layers = 1}), ElementsAre(1, 3, 3, 3));
  EXPECT_THAT(layers(10, {.pp = 4, .last_layers = 4}), ElementsAre(2, 2, 2, 4));
  EXPECT_THAT(layers(10, {.pp = 4, .first_layers = 3, .last_layers = 1}), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(layers(5, {.pp = 2, .first_layers = 3, .last_layers = 2}), ElementsAre(3, 2));
}

// The counts, as in Megatron-LM, apply to a rank, which its chunks share.
TEST(PipelineStagesTest, SplitsRankCountsOverChunks) {
  Layout layout{.pp = 4, .chunks = 2, .first_layers = 4, .last_layers = 2};
  EXPECT_THAT(layers(22, layout), ElementsAre(2, 4, 4, 1, 2, 4, 4, 1));
  layout.schedule = ScheduleKind::ZbV;  // rank 0 has the first and the last stage
  EXPECT_THAT(layers(22, layout), ElementsAre(2, 4, 4, 1, 1, 4, 4, 2));
}

TEST(PipelineStagesTest, ReportsNearestValidCounts) {
  EXPECT_THAT(
      stage_conflicts({.pp = 4, .first_layers = 2}, 10),
      ElementsAre(
          "decoder_first_pipeline_num_layers = 2 leaves 8 of num_layers = 10 for the 3 other pipeline ranks, which "
          "must be a multiple of 3 ranks = 3; nearest decoder_first_pipeline_num_layers: 1 or 4"));
  EXPECT_THAT(
      stage_conflicts({.pp = 4, .chunks = 2, .first_layers = 3, .last_layers = 2}, 16),
      ElementsAre(HasSubstr("decoder_first_pipeline_num_layers = 3 is not a multiple of "
                            "num_virtual_stages_per_pipeline_rank = 2; nearest: 2 or 4"),
                  HasSubstr("leave 11 of num_layers = 16 for the 2 other pipeline ranks, which must be a multiple "
                            "of 2 ranks x num_virtual_stages_per_pipeline_rank = 4")));
  EXPECT_THAT(stage_conflicts({.pp = 2, .first_layers = 3, .last_layers = 2}, 6),
              ElementsAre(HasSubstr("which must be 0; nearest decoder_last_pipeline_num_layers: 3")));
  EXPECT_THAT(
      stage_conflicts({.pp = 3, .last_layers = 6}, 6),
      ElementsAre(HasSubstr("leaves 0 of num_layers = 6 for the 2 other pipeline ranks, which must be a multiple of 2 "
                            "ranks = 2; nearest decoder_last_pipeline_num_layers: 4")));
  EXPECT_THAT(stage_conflicts({.first_layers = 6}, 6),
              ElementsAre(HasSubstr("need pipeline_model_parallel_size of at least 2, not 1")));
  EXPECT_THAT(stage_conflicts({.pp = 0, .chunks = 0, .first_layers = -1}, 0), testing::SizeIs(4));
}

// Every value that a message proposes must be accepted, and every split of a small range must work or have a reason.
TEST(PipelineStagesTest, EverySplitWorksOrIsRejected) {
  for (i64 n = 1; n <= 12; ++n)
    for (i64 ranks = 1; ranks <= 4; ++ranks)
      for (i64 chunks = 1; chunks <= 2; ++chunks)
        for (i64 first = 0; first <= 13; ++first)
          for (i64 last = 0; last <= 13; ++last) {
            const Layout layout{.pp = ranks, .chunks = chunks, .first_layers = first, .last_layers = last};
            const std::vector<std::string> conflicts = stage_conflicts(layout, n);
            if (conflicts.empty()) {
              EXPECT_THAT(layers(n, layout), testing::Each(testing::Ge(1)));
              continue;
            }
            EXPECT_EQ(test::input_error([&] { split_stages(layout, n); }), join(conflicts, "\n"));
            const char* const key =
                last > 0 ? "nearest decoder_last_pipeline_num_layers: " : "nearest decoder_first_pipeline_num_layers: ";
            const std::string& text = conflicts.back();
            const std::size_t at = text.find(key);
            if (at == std::string::npos || conflicts.size() > 1) continue;
            Layout better = layout;
            (last > 0 ? better.last_layers : better.first_layers) =
                std::stoi(text.substr(at + std::string(key).size()));
            EXPECT_THAT(stage_conflicts(better, n), IsEmpty()) << text;
          }
}

TEST(PipelineStagesTest, ParsesPipelineLayouts) {
  EXPECT_THAT(layers(8, {.pp = 4, .stages = "Et*3|(tt|)*2tL"}), ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(layers(8, {.pp = 4, .stages = "Ettt|tt|tt|tL"}), ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(layers(8, {.pp = 4, .stages = "E t*3 |, (t*2|)*2, tL"}), ElementsAre(3, 2, 2, 1));
  EXPECT_THAT(layers(4, {.pp = 4, .stages = "E|t*4||L"}), ElementsAre(0, 4, 0, 0));
  EXPECT_THAT(layers(4, {.pp = 3, .stages = "E|*1(((t)*2)*2|)L"}), ElementsAre(0, 4, 0));
  // DeepSeek-V3 as in the documentation of Megatron-LM: 61 layers on 16 ranks x 2 chunks.
  for (const char* stages : {"Et*3|(tt|)*29,m|L", "Et*3|(tt|)*29,|mL"})
    EXPECT_THAT(
        layers(61, {.pp = 16, .chunks = 2, .stages = stages}),
        ElementsAre(3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0));
  EXPECT_THAT(layers(2, {.pp = 1, .stages = "EttL"}), ElementsAre(2));
}

TEST(PipelineStagesTest, PlacesMultiTokenPredictionInStageOfOutputOrBefore) {
  using Pair = std::pair<int, int>;
  const auto final_norm = [](const Layout& layout) {
    layers(4, layout);
    return Pair(final_norm_stage(layout), final_norm_rank(layout));
  };
  EXPECT_EQ(final_norm({.pp = 2}), Pair(1, 1));
  EXPECT_EQ(final_norm({.pp = 4, .stages = "Ett|tt|mm|L"}), Pair(2, 2));
  EXPECT_EQ(final_norm({.pp = 4, .stages = "Ett|t|t m*2|L"}), Pair(2, 2));
  EXPECT_EQ(final_norm({.pp = 4, .stages = "Ett|t|t|mmL"}), Pair(3, 3));
  EXPECT_EQ(final_norm({.pp = 4, .stages = "Ett|t|t|L"}), Pair(3, 3));
  EXPECT_EQ(final_norm({.pp = 2, .stages = "Ettttm|L"}), Pair(0, 0));
  EXPECT_EQ(final_norm({.pp = 2, .chunks = 2, .stages = "Et|tt|tm|L"}), Pair(2, 0));
  EXPECT_EQ(final_norm({.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .stages = "Et|tt|tm|L"}), Pair(2, 1));
  const std::vector<StageContents> stages = split_stages({.pp = 3, .stages = "Ett|ttm|L"}, 4);
  EXPECT_THAT(stages, ElementsAre(StageContents{0, 2, true, false, false}, StageContents{2, 4, false, false, true},
                                  StageContents{4, 4, false, true, false}));
  EXPECT_TRUE(stages[1].sends_predictions() && stages[2].receives_predictions());
  const StageContents both{0, 4, true, true};
  EXPECT_FALSE(both.sends_predictions() || both.receives_predictions() || stages[0].has_output_part());
}

TEST(PipelineStagesTest, RejectsMalformedPipelineLayouts) {
  const auto conflicts = [](const std::string& text, i64 num_layers = 4, i64 ranks = 2, i64 chunks = 1) {
    return stage_conflicts({.pp = ranks, .chunks = chunks, .stages = text}, num_layers);
  };
  const std::string key = "pipeline_model_parallel_layout: ", mtp = "m (multi-token prediction)",
                    layer_after = key + "no t (layer) may follow " + mtp,
                    one_stage = key + "every " + mtp + " must be in the same stage",
                    before_output = key + "the stage of " + mtp + " must be that of L or directly precede it";
  EXPECT_THAT(conflicts("Ett|tmtL"), ElementsAre(layer_after));
  EXPECT_THAT(conflicts("Ettm|ttL"), ElementsAre(layer_after));
  EXPECT_THAT(conflicts("Ett|ttm|mL", 4, 3), ElementsAre(one_stage));
  EXPECT_THAT(conflicts("Ett|tt(m|)*2L", 4, 4), ElementsAre(one_stage));
  EXPECT_THAT(conflicts("Ett|ttm||L", 4, 4), ElementsAre(before_output));
  EXPECT_THAT(conflicts("Ettm|tm||L", 3, 4), ElementsAre(layer_after, one_stage, before_output));
  EXPECT_THAT(conflicts("Ett|xL"), ElementsAre(HasSubstr("\"x\" is not one of E (embedding)")));
  EXPECT_THAT(conflicts("E(tt|"), ElementsAre(HasSubstr("a \")\" is missing after \"E(tt|\"")));
  EXPECT_THAT(conflicts("Ett)|L"), ElementsAre(HasSubstr("\")\" without its \"(\" after \"Ett\"")));
  EXPECT_THAT(conflicts("Et*|L"), ElementsAre(HasSubstr("a number of at least 1 is missing after \"Et*\"")));
  EXPECT_THAT(conflicts("Et*0|L"), ElementsAre(HasSubstr("a number of at least 1")));
  EXPECT_THAT(conflicts("*3"), ElementsAre(HasSubstr("\"*\" is not one of")));
  EXPECT_THAT(conflicts("Et*99999999999999999999|L"), ElementsAre(HasSubstr("a number of at least 1 is missing")));
  EXPECT_THAT(conflicts("E((t*9999)*9999)*9999|L"), ElementsAre(HasSubstr("too many stages and layers")));
  EXPECT_THAT(conflicts("Ett|tt()*99999L"), ElementsAre(HasSubstr("nothing between \"(\" and \")\" after")));
  const auto nested = [](std::size_t depth) { return std::string(depth, '(') + "Ett|ttL" + std::string(depth, ')'); };
  EXPECT_THAT(conflicts(nested(16)), IsEmpty());
  EXPECT_THAT(conflicts(nested(17)), ElementsAre(HasSubstr("more than 16 nested \"(\"")));
  EXPECT_THAT(conflicts(nested(4000)), ElementsAre(HasSubstr("more than 16 nested \"(\"")));
  EXPECT_THAT(conflicts("tE|tL", 2), ElementsAre(HasSubstr("it must begin with E, and have no other E")));
  EXPECT_THAT(conflicts("EtEL|t", 2), ElementsAre(HasSubstr("it must begin with E"), HasSubstr("it must end with L")));
  EXPECT_THAT(conflicts(",", 2), ElementsAre(HasSubstr("begin with E"), HasSubstr("end with L"),
                                             HasSubstr("it has 0 layers (t), but num_layers = 2"),
                                             HasSubstr("it has 1 stages, but pipeline_model_parallel_size = 2")));
  EXPECT_THAT(conflicts("Et|t|t|tL"), ElementsAre(HasSubstr("it has 4 stages, but pipeline_model_parallel_size = 2; it "
                                                            "fits num_virtual_stages_per_pipeline_rank = 2")));
  EXPECT_THAT(conflicts("Et|t|t|tL", 4, 3, 2),
              ElementsAre("pipeline_model_parallel_layout: it has 4 stages, but pipeline_model_parallel_size x "
                          "num_virtual_stages_per_pipeline_rank = 6"));
  EXPECT_THAT(stage_conflicts({.pp = 2, .last_layers = 2, .stages = "Ett|ttL"}, 4),
              ElementsAre(HasSubstr("cannot be set with it")));
}

}  // namespace
}  // namespace mcpp
