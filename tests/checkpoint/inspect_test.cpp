#include "checkpoint/load/inspect.h"

#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

using InspectCheckpointTest = CheckpointTest;

TEST_F(InspectCheckpointTest, DiffComparesTensorsOfDifferentLayouts) {
  const Path a = save(1, std::vector{numbered("model/same", {8, 8}), numbered("model/changed", {100}),
                                     numbered("model/gone", {3}), numbered("model/shape", {3})});
  NamedShard changed = numbered("model/changed", {100});
  changed.data.data<float>()[50] += 0.5f;
  changed.data.data<float>()[99] -= 2;
  const Path b = save(2, std::vector{numbered("model/same", full_region({{8, 8}, {0, 0}, {8, 3}})),
                                     numbered("model/same", full_region({{8, 8}, {0, 3}, {8, 5}})), changed,
                                     numbered("model/new", {3}), numbered("model/shape", {4})});
  const CheckpointDifference difference = diff_checkpoints(a, b);
  EXPECT_EQ(difference.compared, 2);
  ASSERT_EQ(difference.tensors.size(), 4u);
  EXPECT_EQ(difference.tensors[0].name, "model/changed");
  EXPECT_EQ(difference.tensors[0].max_abs_difference, 2);
  EXPECT_EQ(difference.tensors[0].different_elements, 2);
  EXPECT_CONTAINS(difference.tensors[1].reason, "only in " + a.string());
  EXPECT_EQ(difference.tensors[2].reason, "shape [3] and [4]");
  EXPECT_CONTAINS(difference.tensors[3].reason, "only in " + b.string());
  EXPECT_EQ(difference.state, (std::vector<std::string>{"iteration: 1 and 2", "consumed_samples: 8 and 16"}));
  EXPECT_CONTAINS(to_text(difference), "2 tensors compared, 1 differ");
  EXPECT_TRUE(diff_checkpoints(a, a).tensors.empty());
}

TEST_F(InspectCheckpointTest, ReportsCheckpointRenamedToDifferentIteration) {
  save(55, std::vector{numbered("model/w", {8, 8})});
  std::filesystem::rename(folder_ / "iter_0000055", folder_ / "iter_0000060");
  const std::string what = (folder_ / "iter_0000060").string() + " is the checkpoint of iteration 55";
  EXPECT_CONTAINS(to_text(list_checkpoints(folder_)), what);
  EXPECT_CONTAINS(to_text(verify_checkpoints(folder_, log_)), what);
  EXPECT_CONTAINS(to_text(verify_checkpoints(folder_, log_)), "rename it to iter_0000055 again");
  EXPECT_CONTAINS(error_of([&] { newest_good(folder_, log_); }), "names no checkpoint of this folder");
  // A name that does not look like an iteration is accepted.
  std::filesystem::rename(folder_ / "iter_0000060", folder_ / "best");
  EXPECT_CONTAINS(to_text(verify_checkpoints(folder_ / "best", log_)), "intact");
}

TEST_F(InspectCheckpointTest, ShowsTensorsAndListsCheckpoints) {
  save(1, std::vector{numbered("model/w", {8, 8}), numbered("optimizer/exp_avg/w", {8, 8}, DType::BF16)});
  save(2, std::vector{numbered("model/w", {8, 8})});
  const auto list = list_checkpoints(folder_);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].iteration, 1);
  EXPECT_GT(list[0].bytes, 0);
  EXPECT_FALSE(list[0].is_latest);
  EXPECT_CONTAINS(to_text(list), "complete (latest)");
  const std::string text = describe_checkpoint(list[0].directory);
  EXPECT_CONTAINS(text, "optimizer/exp_avg/w");
  EXPECT_CONTAINS(text, "bf16");
  EXPECT_CONTAINS(text, "[8, 8]");
  EXPECT_EQ(resolve_checkpoint(folder_), folder_ / "iter_0000002");
  EXPECT_EQ(resolve_checkpoint(folder_ / "iter_0000001"), folder_ / "iter_0000001");
  EXPECT_CONTAINS(error_of([&] { resolve_checkpoint(folder_ / "none"); }), "neither a checkpoint");
  EXPECT_CONTAINS(error_of([&] { list_checkpoints(folder_ / "none"); }), "has no checkpoints");
}

}  // namespace
}  // namespace mcpp
