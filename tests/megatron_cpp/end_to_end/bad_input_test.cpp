// Errors in user input and files end with exit code 2 and a message that names the location and the remedy, and leave
// no partial output.
#include <cstring>
#include <functional>
#include <limits>

#include "checkpoint/directory/folder.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/save/async_save.h"
#include "checkpoint/save/writer.h"
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class BadInputTest : public EndToEnd {
 protected:
  /// Runs a command that must fail with exit code 2 and all of `parts` in its message.
  void expect_refused(const Strings& args, const Strings& parts, i64 file_limit = 0) const {
    const Outcome outcome = run(args, file_limit);
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    for (const std::string& part : parts) EXPECT_CONTAINS(outcome.err, part);
    EXPECT_EQ(leftovers(folder_), Strings{}) << outcome.err;
  }
  /// Saves the newest checkpoint of folder `from` to folder `to` after applying `change` to each tensor.
  void rewrite(const std::string& from, const std::string& to,
               const std::function<void(const std::string&, Tensor&)>& change) const {
    CheckpointReader reader(*latest_in(at(from)));
    CpuDevice device;
    std::vector<NamedShard> shards;
    for (const TensorEntry& tensor : reader.manifest().tensors) {
      Tensor values = reader.read_full_tensor(tensor.name, device);
      change(tensor.name, values);
      shards.emplace_back(tensor.name, Box{tensor.global, Shape(tensor.global.size(), 0), tensor.global}, values);
    }
    HostCopies source(shards);
    const auto self = make_self_communicator();
    const Log log;
    const FileSystem files;
    std::filesystem::create_directories(at(to));
    CheckpointSave save({.folder = at(to)}, reader.state(), *self, log, files);
    save.write(source);
    save.gather_and_finish();
    for (const auto& entry : std::filesystem::directory_iterator(at(from)))  // copies the run's tokenizer
      if (entry.is_regular_file() && entry.path().filename() != "latest" && entry.path().extension() != ".jsonl")
        std::filesystem::copy_file(entry.path(), Path(at(to)) / entry.path().filename(),
                                   std::filesystem::copy_options::skip_existing);
  }
  /// Copies the dataset to "copy", where it may be damaged; its .json file only if `with_info`.
  void copy_dataset(bool with_info = true) const {
    for (const char* extension : {".bin", ".idx", ".json"}) {
      if (with_info || std::string(extension) != ".json") {
        std::filesystem::copy_file(dataset() + extension, at("copy") + extension);
      }
    }
  }
  Strings pretrain_on_copy(const Strings& more = {}) const {
    Strings args = pretrain("run", {"--data.data_path=" + at("copy")});
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  Path write(const std::string& name, const std::string& content) const {
    write_file_atomic(folder_ / name, content);
    return folder_ / name;
  }
  Strings preprocess(const Path& input, const Strings& more = {}) const {
    Strings args{"preprocess", "--input=" + input.string(), "--output_prefix=" + at("out"),
                 "--tokenizer_model=" + (root() / "tokenizer.model").string()};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(BadInputTest, NamesKeyAndRemedyOfBadConfiguration) {
  struct Case {
    const char *argument, *key, *remedy;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"--model.num_layer=3", "model.num_layer", "did you mean"},
           {"--modle.num_layers=3", "modle", "did you mean"},
           {"--model.num_layers=three", "model.num_layers", "integer"},
           {"--model.num_layers=0", "model.num_layers", "at least 1"},
           {"--model.num_attention_heads=5", "num_attention_heads", "divisible"},
           {"--training.micro_batch_size=3", "training.global_batch_size", "divisible"},
           {"--training.train_samples=80", "training.train_samples", "only one of"},
           {"--optimizer.lr_warmup_iters=12", "optimizer.lr_warmup_iters", "below"},
           {"--optimizer.optimizer=moun", "optimizer.optimizer", "muon"},
           {"--optimizer.muon_momentum=0.9", "muon_momentum", "only read when optimizer is \"muon\""},
           {"--optimizer.muon_momentum=1", "optimizer.muon_momentum", "below 1"},
           {"--optimizer.muon_num_ns_steps=0", "optimizer.muon_num_ns_steps", "at least 1 and at most 100"},
           {"--optimizer.muon_coefficient_type=polar", "optimizer.muon_coefficient_type", "polar_express"},
           {"--optimizer.muon_tp_mode=blockwise", "muon_tp_mode", "each matrix is gathered on one rank"},
           {"--optimizer.muon_split_heads", "muon_split_heads", "only read when optimizer is \"muon\""},
           {"--optimizer.muon_scale_mode=spectrum", "optimizer.muon_scale_mode", "unit_rms_norm"},
           {"--optimizer.muon_extra_scale_factor=0", "optimizer.muon_extra_scale_factor", "greater than 0"},
           {"--data.split=0,50,50", "data.split", "leaves no text for training"},
           {"--training.train_iters=1000000000000", "training.train_iters", "than one index can hold"},
           {"--training.eval_iters=1000000000000000000", "training.eval_iters", "at most"},
           {"--device.device=cuda", "device.device", "cpu"},
       }) {
    SCOPED_TRACE(c.argument);
    expect_refused(pretrain("run", {c.argument}), {c.key, c.remedy});
  }
  std::string toml = configuration();
  toml.replace(toml.find("[optimizer]"), 11, "[optimiser]");
  toml.replace(toml.find("lr_warmup_iters = 3"), 19, "lr_warmup_iters = \"3\"");
  expect_refused({"pretrain", write("run.toml", toml).string()}, {"run.toml:", "optimiser", "did you mean"});
  expect_refused({"pretrain", write("run.toml", "[model\n").string()}, {"run.toml:1"});
  expect_refused({"pretrain", at("absent.toml")}, {"absent.toml", "No such file"});
  expect_refused({"pretrane"}, {"did you mean pretrain?"});
}

TEST_F(BadInputTest, NamesDamagedTokenFiles) {
  copy_dataset();
  for (const char* extension : {".bin", ".idx"}) {
    SCOPED_TRACE(extension);
    const std::string path = at("copy") + extension;
    std::filesystem::rename(path, at("kept"));
    expect_refused(pretrain_on_copy(), {path});
    write_file_atomic(path, read_text_file(at("kept")).substr(0, std::filesystem::file_size(at("kept")) - 9));
    expect_refused(pretrain_on_copy(), {path});
    expect_refused({"data", "verify", at("copy")}, {path});
    std::filesystem::rename(at("kept"), path);
  }
  run_ok(pretrain_on_copy());
}

TEST_F(BadInputTest, RejectsMismatchedVocabulary) {
  const Path other = folder_ / "other.model";
  make_tokenizer(other, 380);
  expect_refused(pretrain("run", {"--data.tokenizer_model=" + other.string(), "--model.vocab_size=400"}),
                 {dataset(), "a different tokenizer", "preprocess"});
  expect_refused(pretrain("run", {"--model.vocab_size=100"}), {"model.vocab_size: 100 is below the 400"});
  expect_refused(pretrain("run", {"--data.tokenizer_model=" + at("absent.model")}), {at("absent.model")});
  expect_refused(pretrain("run", {"--data.tokenizer_model=" + write("text.model", "no model").string()}),
                 {at("text.model")});
  copy_dataset(false);
  const Strings small{"--data.tokenizer_model=", "--model.vocab_size=300"};
  expect_refused(pretrain_on_copy(small),
                 {at("copy"), "document", "outside the vocabulary 0 .. 299", "a different tokenizer"});
  expect_refused({"data", "verify", at("copy"), "--vocab_size=300"}, {at("copy"), "0 .. 299"});
}

TEST_F(BadInputTest, NamesLineOfBadText) {
  expect_refused(preprocess(write("empty.txt", "")), {"no text"});
  expect_refused(preprocess(write("bytes.txt", "good line\nbad \xff line\n")), {"bytes.txt:2", "UTF-8", "replace"});
  expect_refused(preprocess(write("lines.jsonl", "{\"text\": \"a\"}\n{\"text\": 3}\n")), {"lines.jsonl:2"});
  expect_refused(preprocess(at("absent.txt")), {at("absent.txt")});
  expect_refused({"tokenizer", "train", "--input=" + at("empty.txt"), "--output=" + at("new.model")}, {"empty.txt"});
  expect_refused({"tokenizer", "train", "--input=" + at("bytes.txt"), "--output=" + at("new.model")}, {"bytes.txt"});
  expect_refused({"tokenizer", "train", "--input=" + (root() / "train.txt").string(), "--output=" + at("new.model"),
                  "--vocab_size=2000000000"},
                 {"--vocab_size", "at most 10000000"});
  for (const char* path : {"out_text_document.bin", "out_text_document.idx", "out_text_document.json", "new.model"}) {
    EXPECT_FALSE(std::filesystem::exists(folder_ / path)) << path;
  }
}

TEST_F(BadInputTest, RejectsUnsuitableCheckpoints) {
  train("run");
  expect_refused(pretrain("run", {"--model.hidden_size=64"}), {"model.hidden_size: 32 in the checkpoint, 64 now"});
  const Strings tune{"--checkpoint.load=" + at("run"), "--checkpoint.finetune", "--model.hidden_size=64"};
  expect_refused(pretrain("tuned", tune), {at("run"), "model.hidden_size: 32 in the checkpoint, 64 now"});
  expect_refused(pretrain("tuned", plus(tune, "--checkpoint.allow_changed_keys=model.hidden_size")),
                 {at("run"), "has shape [512, 32]; this model needs [512, 64]"});
  expect_refused(pretrain("new", {"--checkpoint.load=" + at("nothing"), "--checkpoint.exit_on_missing_checkpoint"}),
                 {at("nothing"), "no checkpoint"});
  const Strings evaluate{"evaluate", "--load=" + at("run"), "--text=" + write("empty.txt", "").string()};
  expect_refused(evaluate, {at("empty.txt"), "contains no text"});
  expect_refused({"evaluate", "--load=" + at("run"), "--text=" + at("absent.txt")}, {at("absent.txt")});
  expect_refused({"evaluate", "--load=" + at("run")}, {"--text", "--data"});
  expect_refused({"generate", "--load=" + at("empty.txt")}, {at("empty.txt")});
  expect_refused({"generate", "--load=" + at("run"), "--temperature=-1"}, {"temperature"});
  std::filesystem::resize_file(at("run/iter_0000012/manifest.json"), 100);
  expect_refused({"checkpoint", "show", at("run")}, {"manifest.json"});
  EXPECT_EQ(run({"checkpoint", "verify", at("run")}).code, 2);
}

TEST_F(BadInputTest, RejectsControlCharactersInNames) {
  expect_refused(pretrain("two\nlines"), {"--checkpoint.save=", "must not have newlines or other control characters"});
  expect_refused(pretrain("no\xff"
                          "utf8"),
                 {"--checkpoint.save=", "must be UTF-8"});
  expect_refused(
      pretrain("run", {"--logging.metrics_path=a\rb", "--data.tokenizer_model=\xc3", "--data.data_path=a,b\nc"}),
      {"logging.metrics_path", "data.tokenizer_model", "data.data_path", "3 problems"});
  expect_refused({"evaluate", "--load=a\nb", "--text=x"}, {"--load", "control characters"});
  train("run", {"--training.train_iters=4"});
  expect_refused(pretrain("run/iter_0000004"), {at("run/iter_0000004") + " is a checkpoint itself"});
  expect_refused(pretrain("run/iter_0000004/more"), {at("run/iter_0000004") + " is a checkpoint itself"});
  const std::string inside = at("run/iter_0000004/x"), text = (root() / "train.txt").string();
  for (const Strings& words :
       {Strings{"checkpoint", "export-hf", at("run"), inside}, Strings{"report", at("run"), "--output=" + inside},
        Strings{"tokenizer", "train", text, "--output=" + inside, "--vocab_size=400"},
        Strings{"preprocess", text, "--output_prefix=" + inside,
                "--tokenizer_model=" + (root() / "tokenizer.model").string()},
        Strings{"data", "merge", dataset(), dataset(), "--output_prefix=" + inside}})
    expect_refused(words, {"is a checkpoint itself"});
  for (const std::string key : {"logging.metrics_path", "logging.tensorboard_dir", "logging.profile_dir"})
    expect_refused(pretrain("new", {"--" + key + "=" + inside, "--logging.profile_step_end=3"}),
                   {key + ": " + at("run/iter_0000004"), "is a checkpoint itself"});
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "intact");
}

TEST_F(BadInputTest, DryRunRejectsUnwritableLogOutputs) {
  for (const std::string key : {"logging.metrics_path", "logging.tensorboard_dir"})
    expect_refused(pretrain("new", {"--dry_run", "--" + key + "=/proc/unwritable"}), {key + ": cannot create"});
}

TEST_F(BadInputTest, RejectsCheckpointWithUnusedWeights) {
  train("run", {"--model.untie_embeddings_and_output_weights=true"});
  const Strings tune{"--checkpoint.load=" + at("run"), "--checkpoint.finetune"};
  expect_refused(pretrain("new", tune),
                 {"model.untie_embeddings_and_output_weights: true in the checkpoint, false now"});
  expect_refused(
      pretrain("new", plus(tune, "--checkpoint.allow_changed_keys=model.untie_embeddings_and_output_weights")),
      {at("run"), "model/output_layer.weight has no counterpart in this model"});
  Strings fewer = tune;
  fewer.insert(fewer.end(), {"--model.untie_embeddings_and_output_weights=true", "--model.num_layers=1",
                             "--checkpoint.allow_changed_keys=model.num_layers"});
  expect_refused(pretrain("new", fewer), {"model/decoder.layers.1.", "more tensors have no counterpart in this model"});
}

TEST_F(BadInputTest, RefusesToImportNonFiniteWeights) {
  train("run");
  run_ok({"checkpoint", "export-hf", at("run"), at("hf")});
  const std::string file = at("hf") + "/model.safetensors";
  std::string content = read_text_file(file);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(content.data() + content.size() - sizeof nan, &nan, sizeof nan);
  write_file_atomic(file, content);
  expect_refused({"checkpoint", "import-hf", at("hf"), "--save=" + at("imported")},
                 {at("hf") + ": transformer.", "NaN or infinite"});
  EXPECT_NE(run({"checkpoint", "ls", at("imported")}).code, 0) << "no partial import remains";
  EXPECT_TRUE(std::filesystem::exists(at("hf") + "/tokenizer.model"));
  EXPECT_FALSE(std::filesystem::exists(at("imported") + "/tokenizer.model"));
}

/// A run would resume from a model that is imported into its folder.
TEST_F(BadInputTest, RefusesToImportModelIntoFolderOfRun) {
  train("run", {"--model.hidden_dropout=0"});
  run_ok({"checkpoint", "export-hf", at("run"), at("hf")});
  const std::string latest = read_text_file(at("run") + "/latest");
  expect_refused({"checkpoint", "import-hf", at("hf"), "--save=" + at("run")}, {at("run"), "contains checkpoints"});
  expect_refused({"checkpoint", "upcycle", at("run"), at("run"), "--num_experts=4"},
                 {at("run"), "contains checkpoints"});
  EXPECT_EQ(read_text_file(at("run") + "/latest"), latest);
}

/// Our runs never save such weights, but other programs may, with correct checksums.
TEST_F(BadInputTest, RejectsCheckpointWithNonFiniteWeights) {
  train("run");
  const std::string bad = "model/decoder.final_layernorm.weight";
  for (const float number : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    rewrite("run", "bad", [&](const std::string& name, Tensor& values) {
      if (name == bad) values.data<float>()[values.numel() - 1] = number;
    });
    EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("bad")}), "intact");
    const Strings parts{at("bad") + "/iter_0000012", "decoder.final_layernorm.weight", "NaN or infinite"};
    expect_refused(pretrain("new", {"--checkpoint.load=" + at("bad"), "--checkpoint.finetune"}), parts);
    EXPECT_EQ(metrics("new").size(), 0u);
    expect_refused({"generate", "--load=" + at("bad"), "--prompt=a"}, parts);
    expect_refused({"evaluate", "--load=" + at("bad"), "--text=" + (root() / "held_out.txt").string()}, parts);
    expect_refused({"checkpoint", "export-hf", at("bad"), at("hf")}, parts);
  }
}

TEST_F(BadInputTest, NamesUnwritableFolder) {
  write("file", "in the way");
  expect_refused(pretrain("file"), {at("file")});
  expect_refused(pretrain("file/below"), {at("file")});
  EXPECT_EQ(read_text_file(at("file")), "in the way");
}

/// The first checkpoint fits and later ones do not. The run ends, its checkpoints stay intact, and it can be resumed.
TEST_F(BadInputTest, KeepsCheckpointsWhenDiskIsFull) {
  train("whole");
  train("run", {"--training.exit_interval=4"});
  constexpr i64 kLimit = 100'000;
  expect_refused(pretrain("run"), {at("run"), "more than the limit of file sizes"}, kLimit);
  EXPECT_CONTAINS(run_ok({"checkpoint", "verify", at("run")}), "iter_0000004: intact");
  EXPECT_FALSE(std::filesystem::exists(at("run/iter_0000008")));
  train("run");
  expect_same_checkpoint("whole", "run");
  EXPECT_EQ(losses("whole", 12), losses("run", 12));
  expect_refused({"checkpoint", "export-hf", at("run"), at("hf")}, {at("hf")}, kLimit);
  EXPECT_FALSE(std::filesystem::exists(at("hf/model.safetensors")));
  expect_refused(preprocess(root() / "train.txt"), {at("out")}, 10'000);
  EXPECT_FALSE(std::filesystem::exists(at("out_text_document.idx")));
  EXPECT_FALSE(std::filesystem::exists(at("out_text_document.bin")));
}

}  // namespace
}  // namespace mcpp
