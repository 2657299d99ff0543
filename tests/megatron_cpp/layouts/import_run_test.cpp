// Training runs of PyTorch, torchtitan's format and Megatron Core continue here: the losses of the next steps equal
// those of the original program, on several layouts. tests/foreign/make_golden.py wrote the checkpoints and the losses.
#include "megatron_cpp/exchange/import_run.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/format/pickle_writer.h"
#include "checkpoint/load/distributed_checkpoint.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/distributed_writer.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/exchange/export_run.h"
#include "megatron_cpp/step/training_shards.h"
#include "tests/support/errors.h"
#include "tests/support/golden_folder.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/zip_file.h"

namespace mcpp::import_run_test {
namespace {

using test::error_of;
using test::Numbers;
using test::RunLayout;
using test::RunTask;

constexpr i64 kStepsBefore = 3, kBatch = 4;

/// The run of make_golden.py.
const std::string kConfig = R"([model]
num_layers = 2
hidden_size = 16
num_attention_heads = 4
num_query_groups = 2
ffn_hidden_size = 16
vocab_size = 24
make_vocab_size_divisible_by = 32
seq_length = 16
position_embedding_type = "rope"
normalization = "RMSNorm"
norm_epsilon = 1e-5
activation_func = "swiglu"
add_bias_linear = false
untie_embeddings_and_output_weights = true
hidden_dropout = 0.0
attention_dropout = 0.0
[optimizer]
lr = 1e-2
lr_decay_style = "constant"
weight_decay = 0.1
adam_beta1 = 0.9
adam_beta2 = 0.95
clip_grad = 0.0
[training]
global_batch_size = 4
train_iters = 100
)";

struct Expected {
  std::vector<std::vector<i32>> samples;
  Numbers losses;
};

class ImportRunTest : public testing::Test {
 protected:
  ImportRunTest() { write_file_atomic(config(), kConfig); }

  Path config() const { return folder_ / "run.toml"; }
  Path unpack(const std::string& name) {
    test::unpack_foreign(name, folder_ / name);
    const auto json = nlohmann::json::parse(read_text_file(folder_ / name / "expected.json"));
    expected_.losses = json["losses"].get<Numbers>();
    expected_.samples.clear();
    for (const auto& step : json["tokens"])
      for (const auto& sample : step) expected_.samples.push_back(sample.get<std::vector<i32>>());
    return folder_ / name;
  }

  /// Imports a run and saves the checkpoint. Returns its path.
  Path import(const ImportRequest& request) {
    ImportedRun run = import_run(request, host_);
    EXPECT_TRUE(run.has_optimizer);
    EXPECT_EQ(run.progress.iteration, kStepsBefore);
    EXPECT_EQ(run.progress.consumed_samples, kStepsBefore * kBatch);
    EXPECT_EQ(run.optimizer_steps, kStepsBefore);
    config_ = run.config;
    const auto self = make_self_communicator();
    return save_checkpoint(folder_ / "imported", run_state(run.config, run.progress, run.optimizer_steps), *run.shards,
                           *self, Log());
  }

  /// Returns the losses of a run that continues from a checkpoint.
  Numbers continue_run(const Path& checkpoint, const RunLayout& layout) {
    RunTask task{.model = config_.model, .optimizer = config_.optimizer, .global_batch_size = kBatch, .tokens = {}};
    task.weight_decay = config_.optimizer.weight_decay;
    task.lr = [&](i64) { return config_.optimizer.lr; };
    task.tokens = [&](i64 sample) { return expected_.samples.at(static_cast<std::size_t>(sample)); };
    Numbers losses;
    run_local_ranks(layout.ranks(), [&](Communicator& ranks, int rank) {
      test::LayoutRank self(task, layout, ranks);
      CheckpointReader reader(checkpoint);
      std::vector<NamedShard> shards = shards_to_load(self.state());
      EXPECT_FALSE(reader.load(shards, {ranks, ranks}).has_value());
      self.state().publish_weights();
      restore_counters(config_, self.state(), reader, Log());
      for (std::size_t step = 0; step < expected_.losses.size(); ++step) {
        const double loss = self.step(static_cast<i64>(step)).loss;
        if (rank == 0) losses.push_back(loss);
      }
    });
    return losses;
  }

  void expect_same_losses(const Path& checkpoint, const RunLayout& layout) {
    SCOPED_TRACE(layout.name);
    const Numbers losses = continue_run(checkpoint, layout);
    ASSERT_EQ(losses.size(), expected_.losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected_.losses[i], 1e-5) << "step " << i;
  }
  void expect_continues(const ImportRequest& request) {
    const Path checkpoint = import(request);
    expect_same_losses(checkpoint, {"one rank", {}});
    expect_same_losses(checkpoint, {"tp2", {.tp = 2}});
    expect_same_losses(checkpoint, {"pp2_dp2_zero1", {.pp = 2, .dp = 2, .zero_stage = 1}});
    expect_same_losses(checkpoint, {"dp4_zero3", {.dp = 4, .zero_stage = 3}});
  }
  std::string import_error(const ImportRequest& request) {
    return error_of([&] {
      ImportedRun run = import_run(request, host_);
      for (std::size_t i = 0; i < run.shards->shards().size(); ++i) run.shards->data(i);
    });
  }
  void write_config(const std::string& from, const std::string& to) {
    std::string text = kConfig;
    text.replace(text.find(from), from.size(), to);
    write_file_atomic(config(), text);
  }

  test::ScratchFolder folder_;
  CpuDevice host_;
  Config config_;
  Expected expected_;
};

TEST_F(ImportRunTest, ContinuesDistributedCheckpointLikePyTorch) {
  expect_continues({.path = unpack("torchtitan"), .config = config()});
}

TEST_F(ImportRunTest, ContinuesStateDictLikePyTorch) {
  expect_continues({.path = unpack("state_dict") / "run.pt", .config = config()});
}

TEST_F(ImportRunTest, ContinuesMegatronCoreWithItsOwnArguments) {
  expect_continues({.path = unpack("megatron_dist")});
  EXPECT_EQ(config_.model.num_query_groups, 2);
  EXPECT_EQ(config_.optimizer.adam_beta2, 0.95);
  EXPECT_EQ(config_.training.global_batch_size, 4);
}

/// The models of make_golden.py with experts: the keys that differ from kConfig.
const std::string kExperts = R"(num_experts = 4
moe_router_topk = 2
moe_ffn_hidden_size = 16
moe_shared_expert_intermediate_size = 16
)",
                  kStacked = kExperts + "num_query_groups = 2\nmoe_shared_expert_gate = true\n",
                  kNumbered = kExperts + R"(multi_latent_attention = true
q_lora_rank = 12
kv_lora_rank = 8
qk_head_dim = 4
qk_pos_emb_head_dim = 4
v_head_dim = 8
moe_layer_freq = [0, 1]
moe_router_score_function = "sigmoid"
moe_router_enable_expert_bias = true
moe_router_bias_update_rate = 0.0
moe_router_topk_scaling_factor = 2.5
mtp_num_layers = 1
mtp_loss_scaling_factor = 0.10666666666666667
)";

/// Experts of layers that are one tensor, and of numbered layers; the latter with multi-latent attention, multi-token
/// prediction and an expert bias. Two optimizers update the weights. Megatron Core divides the loss of multi-token
/// prediction by its 15 targets per sample, and this program by 16 tokens, so that the factor is 0.1 * 16 / 15.
TEST_F(ImportRunTest, ContinuesExpertsOfMegatronCore) {
  for (const auto& [name, model] :
       {std::pair("megatron_experts_stacked", kStacked), std::pair("megatron_experts_numbered", kNumbered)}) {
    SCOPED_TRACE(name);
    write_config("num_query_groups = 2\nffn_hidden_size = 16\n", "ffn_hidden_size = 32\n" + model);
    const Path folder = unpack(name);
    EXPECT_CONTAINS(import_error({.path = folder}), "args.num_experts is set, which this import does not convert");
    const Path checkpoint = import({.path = folder, .config = config()});
    expect_same_losses(checkpoint, {"one rank", {}});
    expect_same_losses(checkpoint, {"tp2", {.tp = 2}});
    expect_same_losses(checkpoint, {"dp2_ep2_zero1", {.dp = 2, .ep = 2, .zero_stage = 1}});
    expect_same_losses(checkpoint, {"pp2", {.pp = 2}});
  }
}

/// Megatron Core also saves a tensor per layer and expert, with gates and up projections apart
/// (singleton_local_shards).
TEST_F(ImportRunTest, ReadsOneTensorPerExpertOfMegatronCore) {
  write_config("num_query_groups = 2\nffn_hidden_size = 16\n", "ffn_hidden_size = 32\n" + kStacked);
  DistributedCheckpoint original(unpack("megatron_experts_stacked"));
  DistributedWriter writer(folder_ / "edited");
  constexpr std::string_view kLayers = "decoder.layers.", kExpert = "mlp.experts.experts.";
  const auto without_first_axis = [](const Tensor& values, i64 index) {
    return values.slice(index, index + 1).view({values.shape().begin() + 1, values.shape().end()});
  };
  const auto write = [&](const std::string& name, const Tensor& values) {
    if (!name.ends_with("linear_fc1.weight")) return writer.write({name}, values);
    const i64 half = values.dim(0) / 2;
    writer.write({name + "_w"}, values.slice(0, half));
    writer.write({name + "_v"}, values.slice(half, 2 * half));
  };
  for (const FileTensor& tensor : original.tensors()) {
    if (tensor.type == SafeType::Other || tensor.name.find("optimizer.") != std::string::npos) continue;
    const Tensor values = original.read_all(tensor.name, DType::F32, host_);
    const bool is_layer = tensor.name.starts_with(kLayers);
    if (!is_layer) write(tensor.name, values);
    for (i64 layer = 0; is_layer && layer < values.dim(0); ++layer) {
      const std::string rest = tensor.name.substr(kLayers.size()), prefix = str(kLayers, layer, ".");
      const Tensor own = without_first_axis(values, layer);
      const bool is_expert = rest.starts_with(kExpert);
      if (!is_expert) write(prefix + rest, own);
      for (i64 expert = 0; is_expert && expert < own.dim(0); ++expert)
        write(str(prefix, kExpert, expert, ".", rest.substr(kExpert.size())), without_first_axis(own, expert));
    }
  }
  writer.finish();
  ImportedRun stacked = import_run(
                  {.path = folder_ / "megatron_experts_stacked", .config = config(), .weights_only = true}, host_),
              single = import_run({.path = folder_ / "edited", .config = config(), .weights_only = true}, host_);
  ASSERT_EQ(stacked.shards->shards().size(), single.shards->shards().size());
  for (std::size_t i = 0; i < stacked.shards->shards().size(); ++i)
    EXPECT_EQ(test::to_doubles(stacked.shards->data(i)), test::to_doubles(single.shards->data(i)))
        << stacked.shards->shards()[i].name;
}

TEST_F(ImportRunTest, ReadsUpdatesOfDistributedOptimizer) {
  const ImportRequest request{.path = unpack("megatron_dist"), .config = config()};
  const auto write_common = [&](const PickleWriter& groups) {
    const std::string list = groups.finish();
    PickleWriter common;
    common.begin_dict().text("iteration").integer(5).text("optimizer").begin_dict().text("optimizer").begin_dict();
    const std::string begin = common.text("param_groups").finish();
    write_file_atomic(request.path / "common.pt", test::torch_file_of(begin.substr(2, begin.size() - 3) +
                                                                      list.substr(2, list.size() - 3) + "uuu."));
  };
  for (const bool is_float : {false, true}) {
    PickleWriter groups;  // the first group has no parameters
    groups.begin_list().begin_dict().text("lr").number(0.1).end_dict().begin_dict().text("step");
    is_float ? groups.number(3) : groups.integer(3);
    write_common(groups.end_dict().end_list());
    const ImportedRun run = import_run(request, host_);
    EXPECT_EQ(run.optimizer_steps, 3);
    EXPECT_EQ(run.progress.iteration, 5);
    EXPECT_EQ(run.progress.skipped_iterations, 2);
  }
  write_common(PickleWriter().begin_list().none().end_list());
  EXPECT_CONTAINS(import_error(request), "does not state the number of updates of the optimizer (step)");
}

TEST_F(ImportRunTest, RejectsUnusableProgressOfMegatron) {
  const ImportRequest request{.path = unpack("megatron_dist"), .config = config()};
  const auto write_common = [&](const PickleWriter& iteration, const PickleWriter& samples) {
    const auto opcodes = [](const PickleWriter& value) {
      const std::string text = value.finish();
      return text.substr(2, text.size() - 3);
    };
    PickleWriter args, optimizer;
    args.text("args").begin_dict().text("consumed_train_samples");
    optimizer.text("optimizer").begin_dict().text("param_groups").begin_list();
    optimizer.begin_dict().text("step").integer(3).end_dict().end_list().end_dict();
    write_file_atomic(request.path / "common.pt",
                      test::torch_file_of(opcodes(PickleWriter().begin_dict().text("iteration")) + opcodes(iteration) +
                                          opcodes(args) + opcodes(samples) + "u" + opcodes(optimizer) + "u."));
  };
  const auto number = [](double value) { return PickleWriter().number(value); };
  write_common(number(5), number(7));
  EXPECT_EQ(import_run(request, host_).progress.iteration, 5);
  EXPECT_EQ(import_run(request, host_).progress.consumed_samples, 7);
  write_common(PickleWriter().text("three"), number(7));
  EXPECT_CONTAINS(import_error(request), "common.pt: iteration is not a number; pass --iteration");
  ImportRequest replaced = request;
  replaced.iteration = 4;
  EXPECT_EQ(import_run(replaced, host_).progress.iteration, 4);
  write_common(number(2.5), number(7));
  EXPECT_CONTAINS(import_error(request), "common.pt: iteration is 2.5, not a count");
  write_common(PickleWriter().integer(-1), number(7));
  EXPECT_CONTAINS(import_error(request), "common.pt: iteration is -1, not a count");
  write_common(number(5), PickleWriter().none());
  EXPECT_CONTAINS(import_error(request),
                  "common.pt: args.consumed_train_samples is not a number; pass --consumed_samples");
  replaced.consumed_samples = 9;
  EXPECT_EQ(import_run(replaced, host_).progress.consumed_samples, 9);
  replaced = request;
  replaced.weights_only = true;
  EXPECT_EQ(import_error(replaced), "");
}

TEST_F(ImportRunTest, RejectsUnusableIterationOfPyTorch) {
  DistributedCheckpoint original(unpack("torchtitan"));
  DistributedWriter writer(folder_ / "edited");
  for (const FileTensor& tensor : original.tensors())
    if (tensor.type != SafeType::Other) writer.write({tensor.name}, original.read_all(tensor.name, DType::F32, host_));
  writer.write({"train_state.step"}, PickleWriter().text("three"));
  writer.finish();
  const ImportRequest request{.path = folder_ / "edited", .config = config()};
  EXPECT_CONTAINS(import_error(request), "edited: train_state.step is not a number; pass --iteration");
  EXPECT_EQ(import_error({.path = request.path, .config = config(), .iteration = 3}), "");
}

TEST_F(ImportRunTest, ImportsLegacyWeightsOfMegatronCore) {
  const Path folder = unpack("megatron_legacy");
  ImportedRun legacy = import_run({.path = folder}, host_),
              sharded = import_run({.path = unpack("megatron_dist"), .weights_only = true}, host_);
  EXPECT_FALSE(legacy.has_optimizer);
  ASSERT_EQ(legacy.shards->shards().size(), sharded.shards->shards().size());
  for (std::size_t i = 0; i < legacy.shards->shards().size(); ++i) {
    EXPECT_EQ(legacy.shards->shards()[i].name, sharded.shards->shards()[i].name);
    EXPECT_EQ(test::to_doubles(legacy.shards->data(i)), test::to_doubles(sharded.shards->data(i)));
  }
  std::filesystem::remove_all(folder / "iter_0000003/mp_rank_00");
  EXPECT_CONTAINS(import_error({.path = folder}), "has none of .metadata");
  std::filesystem::create_directories(folder / "iter_0000003/mp_rank_00_000");
  EXPECT_CONTAINS(import_error({.path = folder}), "has none of .metadata");
}

TEST_F(ImportRunTest, MergesPipelineRanksOfLegacyCheckpoints) {
  ImportedRun one = import_run({.path = unpack("megatron_legacy")}, host_),
              two = import_run({.path = unpack("megatron_stages")}, host_);
  ASSERT_EQ(one.shards->shards().size(), two.shards->shards().size());
  for (std::size_t i = 0; i < one.shards->shards().size(); ++i)
    EXPECT_EQ(test::to_doubles(one.shards->data(i)), test::to_doubles(two.shards->data(i)))
        << one.shards->shards()[i].name;
  const Path ranks = folder_ / "megatron_stages/iter_0000003";
  std::filesystem::remove_all(ranks / "mp_rank_01_001");
  EXPECT_CONTAINS(import_error({.path = folder_ / "megatron_stages"}), "pipeline rank 1 has 1 tensor-parallel ranks");
  std::filesystem::remove_all(ranks / "mp_rank_01_000");
  std::filesystem::rename(ranks / "mp_rank_00_001", ranks / "mp_rank_00_002");
  EXPECT_CONTAINS(import_error({.path = folder_ / "megatron_stages"}),
                  "has 2 folders of ranks, but the ranks from 0 on are 1");
}

TEST_F(ImportRunTest, KeepsFp32WeightsAsMasterWeightsOfLowPrecision) {
  ImportedRun full = import_run({.path = unpack("torchtitan"), .config = config()}, host_),
              half = import_run({.path = folder_ / "torchtitan", .config = config(), .dtype = DType::BF16}, host_);
  std::map<std::string, Numbers> weights;
  for (std::size_t i = 0; i < full.shards->shards().size(); ++i)
    weights[full.shards->shards()[i].name] = test::to_doubles(full.shards->data(i));
  int masters = 0;
  for (std::size_t i = 0; i < half.shards->shards().size(); ++i) {
    const ShardSpec& spec = half.shards->shards()[i];
    if (is_model_tensor(spec.name)) {
      EXPECT_EQ(spec.dtype, DType::BF16);
    }
    if (!spec.name.starts_with("optimizer/master/")) continue;
    ++masters;
    EXPECT_EQ(spec.dtype, DType::F32);
    EXPECT_EQ(test::to_doubles(half.shards->data(i)), weights.at(model_tensor(spec.name.substr(17))));
  }
  EXPECT_EQ(masters, 15);
}

TEST_F(ImportRunTest, AcceptsOtherProgress) {
  const ImportRequest request{
      .path = unpack("torchtitan"), .config = config(), .iteration = 5, .consumed_samples = 1000};
  const ImportedRun run = import_run(request, host_);
  EXPECT_EQ(run.progress.iteration, 5);
  EXPECT_EQ(run.progress.skipped_iterations, 2);
  EXPECT_EQ(run.progress.consumed_samples, 1000);
  EXPECT_CONTAINS(import_error({.path = request.path, .config = config(), .iteration = 2}),
                  "has 2 iterations, but 3 updates of the optimizer; pass --iteration");
}

TEST_F(ImportRunTest, RejectsConfigurationsThatDoNotFit) {
  const Path path = unpack("torchtitan");
  const ImportRequest request{.path = path, .config = config()};
  EXPECT_CONTAINS(import_error({.path = path}), "does not state the model; pass --config");
  write_config("ffn_hidden_size = 16", "ffn_hidden_size = 32");
  EXPECT_CONTAINS(import_error(request),
                  "feed_forward.w1.weight has shape [16, 16], but the configuration requires [32, 16]");
  write_config("num_layers = 2", "num_layers = 1");
  EXPECT_CONTAINS(import_error(request), "has no counterpart in the model of the configuration");
  write_config("num_layers = 2", "num_layers = 3");
  EXPECT_CONTAINS(import_error(request), "has no tensor layers.2.");
  write_config("vocab_size = 24", "vocab_size = 25");
  EXPECT_CONTAINS(import_error(request),
                  "tok_embeddings.weight has shape [24, 16], but the configuration requires [25, 16]");
  write_config("add_bias_linear = false", "add_bias_linear = true");
  EXPECT_CONTAINS(import_error(request), "has no tensor layers.0.");
  write_config("adam_beta1 = 0.9\nadam_beta2 = 0.95\n", "optimizer = \"sgd\"\n");
  EXPECT_CONTAINS(import_error(request), "the checkpoint has the state of AdamW");
  EXPECT_CONTAINS(import_error({.path = folder_ / "absent"}), "absent: no such file or folder");
  EXPECT_CONTAINS(import_error({.path = folder_.path()}), "has none of .metadata");
}

TEST_F(ImportRunTest, CountsPaddingOfVocabulary) {
  const Path path = unpack("torchtitan");
  EXPECT_EQ(import_run({.path = path, .config = config()}, host_).padding_rows, 0);
  write_config("vocab_size = 24", "vocab_size = 20");
  EXPECT_EQ(import_run({.path = path, .config = config()}, host_).padding_rows, 4);
}

/// The run continues in the folder of the new checkpoint, which the file need not name.
TEST_F(ImportRunTest, AcceptsConfigurationWithoutFolder) {
  write_config("[optimizer]", "[checkpoint]\nsave_interval = 5\n[optimizer]");
  const Path path = unpack("torchtitan");
  EXPECT_EQ(import_run({.path = path, .config = config(), .save = folder_ / "run"}, host_).config.checkpoint.save,
            (folder_ / "run").string());
}

TEST_F(ImportRunTest, ExportedRunMatchesImportedRun) {
  const Path original = unpack("torchtitan");
  CheckpointReader reader(import({.path = original, .config = config()}));
  export_distributed(folder_ / "exported", config_, reader, {});
  DistributedCheckpoint before(original), after(folder_ / "exported");
  int compared = 0;
  for (const FileTensor& tensor : before.tensors()) {
    SCOPED_TRACE(tensor.name);
    ASSERT_NE(after.find(tensor.name), nullptr);
    EXPECT_EQ(after.at(tensor.name).shape, tensor.shape);
    EXPECT_EQ(after.at(tensor.name).type, tensor.type);
    EXPECT_EQ(after.number(tensor.name), before.number(tensor.name));
    if (tensor.type == SafeType::Other) continue;
    ++compared;
    EXPECT_EQ(test::to_doubles(after.read_all(tensor.name, DType::F64, host_)),
              test::to_doubles(before.read_all(tensor.name, DType::F64, host_)));
  }
  EXPECT_EQ(compared, 21 * 4);
  for (const char* key : {"lr", "eps", "weight_decay"})
    for (const char* name : {"norm.weight", "layers.1.attention.wk.weight"})
      EXPECT_EQ(after.number(str("optimizer.param_groups.", name, ".", key)),
                before.number(str("optimizer.param_groups.", name, ".", key)))
          << name << "." << key;
  EXPECT_CONTAINS(error_of([&] { export_distributed(folder_ / "exported", config_, reader, {}); }),
                  "already has a distributed checkpoint");
}

/// After 3 of 100 iterations of a linear decay to 0, and of a linear ramp of the weight decay from 0.1 to 0.3.
TEST_F(ImportRunTest, ExportsRatesOfNextStep) {
  write_config("lr_decay_style = \"constant\"\nweight_decay = 0.1",
               "lr_decay_style = \"linear\"\nstart_weight_decay = 0.1\nend_weight_decay = 0.3\n"
               "weight_decay_incr_style = \"linear\"");
  CheckpointReader reader(import({.path = unpack("torchtitan"), .config = config()}));
  export_distributed(folder_ / "exported", config_, reader, {});
  DistributedCheckpoint exported(folder_ / "exported");
  const auto value = [&](const char* key) {
    return exported.number(str("optimizer.param_groups.layers.1.attention.wk.weight.", key)).value();
  };
  EXPECT_NEAR(value("lr"), 0.01 * 97 / 100, 1e-12);
  EXPECT_EQ(value("initial_lr"), 0.01);
  EXPECT_NEAR(value("weight_decay"), 0.1 + 0.2 * 3 / 100, 1e-12);
}

TEST_F(ImportRunTest, ImportsExportsWithHuggingfaceNames) {
  CheckpointReader reader(import({.path = unpack("megatron_dist")}));
  export_distributed(folder_ / "exported", config_, reader, {.format = WeightFormat::Huggingface});
  EXPECT_NE(DistributedCheckpoint(folder_ / "exported").find("model.layers.1.self_attn.q_proj.weight"), nullptr);
  write_file_atomic(config(), print_config(config_));
  ImportedRun again = import_run({.path = folder_ / "exported", .config = config()}, host_);
  EXPECT_EQ(again.format, WeightFormat::Huggingface);
  EXPECT_EQ(again.optimizer_steps, kStepsBefore);
  for (std::size_t i = 0; i < again.shards->shards().size(); ++i) {
    const std::string& name = again.shards->shards()[i].name;
    EXPECT_EQ(test::to_doubles(again.shards->data(i)), test::to_doubles(reader.read_full_tensor(name, host_))) << name;
  }
}

TEST_F(ImportRunTest, RejectsExportsWithoutNames) {
  CheckpointReader reader(import({.path = unpack("torchtitan"), .config = config()}));
  Config sinks = config_;
  sinks.model.softmax_type = SoftmaxType::Learnable;
  EXPECT_CONTAINS(
      error_of([&] { export_distributed(folder_ / "exported", sinks, reader, {.format = WeightFormat::Huggingface}); }),
      "no Hugging Face model type can express this model");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "exported"));
}

/// Models whose weights have names in torchtitan, but that its Llama computes differently.
TEST_F(ImportRunTest, RejectsExportsThatTorchtitanComputesDifferently) {
  CheckpointReader reader(import({.path = unpack("torchtitan"), .config = config()}));
  const auto expect_refused = [&](const std::string& key, const std::function<void(ModelConfig&)>& change) {
    Config changed = config_;
    change(changed.model);
    const std::string error = error_of([&] { export_distributed(folder_ / "exported", changed, reader, {}); });
    EXPECT_CONTAINS(error, "torchtitan's Llama requires different values of " + key);
    EXPECT_CONTAINS(error, "--names=huggingface");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "exported")) << key;
  };
  using M = ModelConfig;
  expect_refused("model.window_size", [](M& m) { m.window_size = {8, 0}; });
  expect_refused("model.activation_func", [](M& m) { m.activation_func = ActivationFunction::GeGLU; });
  expect_refused("model.normalization", [](M& m) { m.normalization = Normalization::LayerNorm; });
  expect_refused("model.rotary_percent", [](M& m) { m.rotary_percent = 0.5; });
  expect_refused("model.attn_logit_softcapping", [](M& m) { m.attn_logit_softcapping = 30; });
  expect_refused("model.add_bias_linear", [](M& m) { m.add_bias_linear = true; });
  expect_refused("model.add_mlp_bias", [](M& m) { m.add_mlp_bias = true; });
  expect_refused("model.untie_embeddings", [](M& m) { m.untie_embeddings_and_output_weights = false; });
  expect_refused("model.kv_channels", [](M& m) { m.kv_channels = 8; });
  expect_refused("model.rope_scaling_type",
                 [](M& m) { m.rope_scaling = {.type = RopeScalingType::Linear, .factor = 2}; });
}

TEST_F(ImportRunTest, ExportsAveragedWeightsOnlyWithoutOptimizer) {
  CheckpointReader reader(import({.path = unpack("torchtitan"), .config = config()}));
  const auto error = [&](bool weights_only) {
    return error_of([&] {
      export_distributed(folder_ / "exported", config_, reader,
                         {.weights = WeightSource::Ema, .weights_only = weights_only});
    });
  };
  EXPECT_CONTAINS(error(true), "has no averaged weights, because it was trained without optimizer.ema_decay");
}

}  // namespace
}  // namespace mcpp::import_run_test
