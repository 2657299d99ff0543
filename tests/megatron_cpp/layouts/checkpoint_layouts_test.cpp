// Any layout loads checkpoints of any other: weights and optimizer state are bitwise identical in every replica, and
// training continues like the run that was saved. Ranks are threads.
#include <gtest/gtest.h>

#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/shard_list.h"
#include "tests/support/tiny_model.h"

namespace mcpp::checkpoint_layouts_test {
namespace {

using test::Numbers;
using test::RunLayout;
using test::RunTask;
using test::Weights;

constexpr i64 kStepsBefore = 2, kStepsAfter = 2;

const std::vector<RunLayout> kLayouts{
    {"one_rank", {}},
    {"tp2", {.tp = 2}},
    {"tp4_sp", {.tp = 4, .sequence_parallel = true}},
    {"pp2_uneven", {.pp = 2, .first_layers = 5}},
    {"pp2_zb_v", {.pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2}},
    {"pp4_interleaved", {.pp = 4, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
    {"dp2", {.dp = 2}},
    {"dp2_zero1_one_bucket", {.dp = 2, .zero_stage = 1, .bucket_size = 0}},
    {"dp4_zero2", {.dp = 4, .zero_stage = 2}},
    {"dp4_zero3", {.dp = 4, .zero_stage = 3}},
    {"cp2_dp2_zero1", {.cp = 2, .dp = 2, .zero_stage = 1}},
    {"cp4_a2a_p2p_zero3", {.cp = 4, .cp_comm_type = CpCommType::A2aP2p, .cp_hierarchy = {2, 2}, .zero_stage = 3}},
    {"tp2_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .zero_stage = 1}},
    {"tp2_sp_dp4_hsdp_zero3", {.tp = 2, .dp = 4, .sequence_parallel = true, .zero_stage = 3, .instances = 2}},
    {"tp4_pp4", {.tp = 4, .pp = 4}},
    {"tp2_sp_pp2_dp4_zero2",
     {.tp = 2,
      .pp = 2,
      .dp = 4,
      .sequence_parallel = true,
      .schedule = ScheduleKind::Interleaved,
      .chunks = 2,
      .zero_stage = 2}},
};

const std::vector<RunLayout> kExpertLayouts{
    {"experts_one_rank", {}},
    {"ep2", {.dp = 2, .ep = 2}},
    {"ep4_zero1", {.dp = 4, .ep = 4, .zero_stage = 1}},
    {"tp2_sp_ep2_etp1", {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1}},
    {"dp4_ep2_etp2_zero3", {.dp = 4, .ep = 2, .etp = 2, .zero_stage = 3}},
    {"pp2_interleaved_ep2", {.pp = 2, .dp = 2, .ep = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2}},
    {"cp2_ep2_zero2", {.cp = 2, .dp = 2, .ep = 2, .zero_stage = 2}},
    {"dp8_ep4_hsdp_zero3", {.dp = 8, .ep = 4, .zero_stage = 3, .instances = 2}},
};

/// Experts of a latent that are balanced by a bias, by the loads of the previous step, and by sample.
ModelConfig tiny_moe() {
  ModelConfig model = test::tiny_llama();
  model.moe.num_experts = 4;
  model.moe.ffn_hidden_size = 24;
  model.moe.router_score_function = RouterScore::Sigmoid;
  model.moe.router_enable_expert_bias = true;
  model.moe.latent_size = 20;
  model.moe.router_load_balancing_type =
      OneOrList(std::vector{LoadBalancing::GlobalAuxLoss, LoadBalancing::SeqAuxLoss});
  model.moe.aux_loss_coeff = OneOrList(std::vector{0.01, 0.005});
  return model;
}

ModelConfig tiny_mixtral() {
  ModelConfig model = test::tiny_llama();
  model.moe.num_experts = 4;
  model.moe.aux_loss_coeff = 0.001;
  return model;
}

/// Returns true if both layouts add all sums in the same order (layout_parity_test.cpp), so that training is bitwise
/// identical.
bool have_same_summation_order(const RunLayout& a, const RunLayout& b) {
  const auto plain = [](const RunLayout& l) { return l.zero_stage <= 1 && l.instances == 1; };
  const bool same_groups = a.tp == b.tp && a.dp == b.dp && a.cp == b.cp && a.sequence_parallel == b.sequence_parallel &&
                           a.ep == b.ep && a.etp == b.etp;
  return a.name == b.name || (same_groups && plain(a) && plain(b));
}

/// A run that was saved and then continued.
struct SavedRun {
  Path checkpoint;
  Weights tensors = {};  ///< weights and optimizer state of the global model at the time of the save
  i64 optimizer_steps = 0;
  Numbers losses_after = {};
};

/// Calls f(global index, local index) for every element of the shard.
template <class F>
void for_each_element(const NamedShard& shard, F&& f) {
  for (i64 i = 0; i < shard.numel(); ++i)
    f(static_cast<std::size_t>(test::global_index(shard.box, shard.flat_begin + i)), static_cast<std::size_t>(i));
}

class CheckpointLayoutsTest : public testing::Test {
 protected:
  static RunTask task_of(ModelConfig model, DType dtype) {
    model.num_layers = 8;
    model.hidden_size = 16;
    model.num_attention_heads = 4;
    model.seq_length = 8;
    return test::learnable_task(model, dtype);
  }

  SavedRun save(const RunTask& task, const RunLayout& layout) {
    SavedRun saved{.checkpoint = scratch_ / layout.name / checkpoint_name(kStepsBefore)};
    std::mutex mutex;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      for (i64 step = 0; step < kStepsBefore; ++step) self.step(step);
      const Log log(rank);
      test::save_shards(scratch_ / layout.name, {.iteration = kStepsBefore}, shards_to_save(self.state()), world, log);
      {
        const std::lock_guard lock(mutex);
        for (const NamedShard& shard : shards_to_load(self.state())) record_shard(shard, saved.tensors);
      }
      Numbers losses;
      const i64 steps = self.state().optimizer().steps();
      for (i64 step = 0; step < kStepsAfter; ++step) losses.push_back(self.step(kStepsBefore + step).loss);
      if (rank == 0) saved.losses_after = losses, saved.optimizer_steps = steps;
    });
    return saved;
  }

  static void record_shard(const NamedShard& shard, Weights& tensors) {
    Numbers& whole = tensors[shard.name];
    whole.resize(static_cast<std::size_t>(numel(shard.box.global)));
    const Numbers part = test::to_doubles(shard.data);
    for_each_element(shard, [&](std::size_t global, std::size_t local) { whole[global] = part[local]; });
  }

  /// Returns the number of elements on this rank that differ from the saved ones.
  static i64 differences(const TrainingState& state, const Weights& tensors) {
    i64 different = 0;
    for (const NamedShard& shard : shards_to_load(state)) {
      const Numbers part = test::to_doubles(shard.data), &whole = tensors.at(shard.name);
      for_each_element(shard,
                       [&](std::size_t global, std::size_t local) { different += part[local] != whole[global]; });
    }
    return different;
  }

  /// Loads `saved` in `layout` and continues. Returns the losses.
  static Numbers load(const RunTask& task, const RunLayout& layout, const SavedRun& saved) {
    Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& world, int rank) {
      test::LayoutRank self(task, layout, world);
      CheckpointReader reader(saved.checkpoint);
      self.device().reset_peak();
      const i64 before = self.device().memory().total.bytes;
      std::vector<NamedShard> shards = shards_to_load(self.state());
      EXPECT_FALSE(reader.load(shards, world));
      EXPECT_EQ(self.device().memory().total.peak, before) << "loading on the host allocates no memory";
      EXPECT_EQ(differences(self.state(), saved.tensors), 0) << "rank " << rank;
      self.state().publish_weights();
      self.state().optimizer().set_steps(saved.optimizer_steps);
      Numbers rank_losses;
      for (i64 step = 0; step < kStepsAfter; ++step) rank_losses.push_back(self.step(kStepsBefore + step).loss);
      if (rank == 0) losses = rank_losses;
    });
    return losses;
  }

  void expect_loads_on_every_layout(const RunTask& task, const std::vector<RunLayout>& layouts) {
    for (const RunLayout& from : layouts) {
      const SavedRun saved = save(task, from);
      EXPECT_EQ(find_problems(saved.checkpoint), std::vector<std::string>{});
      for (const RunLayout& to : layouts) {
        SCOPED_TRACE(str("saved by ", from.name, ", loaded by ", to.name));
        const Numbers losses = load(task, to, saved);
        if (have_same_summation_order(from, to)) {
          EXPECT_EQ(losses, saved.losses_after);
        }
        for (std::size_t i = 0; i < losses.size() && task.dtype == DType::F32; ++i)
          EXPECT_NEAR(losses[i], saved.losses_after[i], 1e-5 * saved.losses_after[i]);
      }
    }
  }

  const test::ScratchFolder scratch_;
};

TEST_F(CheckpointLayoutsTest, LoadsCheckpointsOfEveryLayout) {
  expect_loads_on_every_layout(task_of(test::tiny_gpt2(), DType::F32), kLayouts);
}

TEST_F(CheckpointLayoutsTest, LoadsCheckpointsOfEveryLayoutInBf16WithMasterWeights) {
  expect_loads_on_every_layout(task_of(test::tiny_llama(), DType::BF16),
                               {kLayouts[0], kLayouts[2], kLayouts[5], kLayouts[9], kLayouts[10]});
}

/// No state of the recipe `tensorwise` is saved; the scales follow from the tensors.
TEST_F(CheckpointLayoutsTest, LoadsCheckpointsOfEveryLayoutInFp8) {
  RunTask task = task_of(test::tiny_llama(), DType::BF16);
  task.fp8 = Fp8::Hybrid;
  expect_loads_on_every_layout(task, {kLayouts[0], kLayouts[2], kLayouts[5], kLayouts[9], kLayouts[10]});
}

/// The output layer is also that of multi-token prediction, which may be in another stage.
TEST_F(CheckpointLayoutsTest, LoadsAmaxHistoriesOfEveryLayout) {
  ModelConfig model = test::tiny_llama();
  model.mtp_num_layers = 1;
  RunTask task = task_of(model, DType::BF16);
  task.fp8 = Fp8::Hybrid;
  task.fp8_recipe = Fp8RecipeName::Delayed;
  task.low_precision = {{.modules = OneOrList<std::string>("output_layer"), .recipe = GemmRecipe::Delayed}};
  expect_loads_on_every_layout(task, {{"one_rank", {}},
                                      {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
                                      {"cp2_dp2_zero3", {.cp = 2, .dp = 2, .zero_stage = 3}},
                                      {"pp2_first_stage", {.pp = 2, .stages = "Et*8m|L"}},
                                      {"pp4_tp2", {.tp = 2, .pp = 4, .stages = "Et*4|t*4|m|L"}}});
}

TEST_F(CheckpointLayoutsTest, LoadsExpertsAndTheirBalancingState) {
  expect_loads_on_every_layout(task_of(tiny_moe(), DType::F32), kExpertLayouts);
}

/// Multi-token prediction moves between the stage of the output and one of its own.
TEST_F(CheckpointLayoutsTest, LoadsMultiTokenPredictionInAnyStage) {
  ModelConfig model = test::tiny_llama();
  model.mtp_num_layers = 2;
  const std::vector<RunLayout> layouts{
      {"mtp_one_rank", {}},
      {"mtp_pp2_with_output", {.pp = 2, .stages = "Et*4|t*4mmL"}},
      {"mtp_pp2_first_stage", {.pp = 2, .stages = "Et*8mm|L"}},
      {"mtp_pp4_dp2_zero3", {.pp = 4, .dp = 2, .stages = "Et*4|t*4|mm|L", .zero_stage = 3}},
      {"mtp_tp2_pp2_zb_v", {.tp = 2, .pp = 2, .schedule = ScheduleKind::ZbV, .chunks = 2, .stages = "Et*3|t*3|ttmm|L"}},
  };
  expect_loads_on_every_layout(task_of(model, DType::F32), layouts);
  expect_loads_on_every_layout(task_of(model, DType::BF16), {layouts[0], layouts[2], layouts[3]});
}

TEST_F(CheckpointLayoutsTest, LoadsMuonMomentumOfExperts) {
  RunTask task = task_of(tiny_moe(), DType::F32);
  task.optimizer.optimizer = OptimizerKind::Muon;
  expect_loads_on_every_layout(task, {kExpertLayouts[0], kExpertLayouts[2], kExpertLayouts[3], kExpertLayouts[4]});
}

TEST_F(CheckpointLayoutsTest, LoadsMuonMomentum) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(test::tiny_llama(), dtype);
    task.optimizer.optimizer = OptimizerKind::Muon;
    task.optimizer.muon_split_heads = dtype == DType::BF16;
    expect_loads_on_every_layout(task, {kLayouts[0], kLayouts[2], kLayouts[5], kLayouts[9], kLayouts[10]});
  }
}

TEST_F(CheckpointLayoutsTest, LoadsAveragedWeights) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask task = task_of(test::tiny_llama(), dtype);
    task.optimizer.ema_decay = 0.9;
    expect_loads_on_every_layout(task, {kLayouts[0], kLayouts[2], kLayouts[5], kLayouts[9], kLayouts[10]});
  }
  RunTask task = task_of(tiny_moe(), DType::F32);
  task.optimizer.ema_decay = 0.9;
  task.optimizer.optimizer = OptimizerKind::Muon;
  expect_loads_on_every_layout(task, {kExpertLayouts[0], kExpertLayouts[2], kExpertLayouts[4]});
}

/// Hugging Face models are independent of the layout: exported from a sharded run, imported, resharded and exported
/// again, the files are identical. The vocabulary is padded here, but not in the files.
TEST_F(CheckpointLayoutsTest, RoundTripsHuggingFaceModelsThroughAnyLayout) {
  for (ModelConfig model : {test::tiny_gpt2(), test::tiny_llama(), tiny_mixtral()}) {
    model.rotary_percent = 1;
    model.make_vocab_size_divisible_by = ModelConfig{}.make_vocab_size_divisible_by;  // as in an imported model
    RunTask task = task_of(model, DType::F32);
    const std::string name = model.add_bias_linear ? "gpt2" : model.moe.num_experts > 0 ? "mixtral" : "llama";
    const auto export_to = [&](const Path& checkpoint, const Path& folder) {
      CheckpointReader reader(checkpoint);
      export_huggingface(folder, task.model, reader, {.max_file_bytes = 30'000});
      return SafetensorsReader(folder);
    };
    const RunLayout& sharded_layout = kLayouts[10];
    const SafetensorsReader first = export_to(save(task, sharded_layout).checkpoint, scratch_ / ("hf_" + name));
    const std::string embedding = name == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight";
    EXPECT_EQ(first.at(embedding).shape, (Shape{29, 16})) << "no padding";

    CpuDevice device;
    const ImportedModel imported = import_huggingface(scratch_ / ("hf_" + name), {}, device);
    const auto self = make_self_communicator();
    const Path whole = save_checkpoint(scratch_ / ("imported_" + name), {}, *imported.weights, *self, Log());
    i64 largest = 0;
    for (const ShardSpec& shard : imported.weights->shards()) largest = std::max(largest, shard.numel() * 4);
    EXPECT_LE(device.memory().total.peak, 2 * largest + 4096) << "one tensor at a time, on the device and on the host";

    for (const RunLayout* layout : {&kLayouts[5], &kLayouts[12]}) {
      const std::string copy = str(name, "_", layout->name);
      run_local_ranks(layout->ranks(), [&](Communicator& world, int rank) {
        test::LayoutRank rank_state(task, *layout, world);
        CheckpointReader reader(whole);
        for (NamedShard& shard : shards_to_load(rank_state.state())) {
          if (shard.name.starts_with("model/")) reader.read(shard);
        }
        test::save_shards(scratch_ / copy, {}, shards_to_save(rank_state.state()), world, Log(rank));
      });
      const SafetensorsReader again = export_to(scratch_ / copy / checkpoint_name(0), scratch_ / ("hf_" + copy));
      ASSERT_EQ(again.tensors().size(), first.tensors().size());
      for (const SafeTensor& tensor : first.tensors())
        EXPECT_TRUE(std::ranges::equal(first.bytes(tensor), again.bytes(again.at(tensor.name)))) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace mcpp::checkpoint_layouts_test
