// Checkpoints that PyTorch and Megatron Core wrote, read as tensors by name, intact and damaged.
#include <nlohmann/json.hpp>

#include "checkpoint/load/distributed_checkpoint.h"
#include "checkpoint/load/torch_files.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/golden_folder.h"
#include "tests/support/zip_file.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;

class ForeignFilesTest : public CheckpointTest {
 protected:
  Path unpack(const std::string& name) {
    test::unpack_foreign(name, folder_ / name);
    return folder_ / name;
  }
  /// Writes a file of torch.save with these opcodes and a storage of six floats. Returns the error of reading it.
  std::string error_of_file(const std::string& opcodes, bool ignores_optimizer = false) {
    write_file_atomic(folder_ / "x.pt", test::torch_file_of(opcodes + ".", {std::string(24, '\0')}));
    return error_of([&] { TorchFiles({folder_ / "x.pt"}, ignores_optimizer); });
  }
  bool equal(TensorFiles& a, const std::string& name_a, TensorFiles& b, const std::string& name_b) {
    return same_bits(a.read_all(name_a, DType::F32, device_), b.read_all(name_b, DType::F32, device_));
  }
};

TEST_F(ForeignFilesTest, DistributedCheckpointEqualsStateDict) {
  DistributedCheckpoint sharded(unpack("torchtitan"));
  TorchFiles file({unpack("state_dict") / "run.pt"});
  int moments = 0;
  for (const FileTensor& tensor : file.tensors()) {
    SCOPED_TRACE(tensor.name);
    ASSERT_TRUE(equal(file, tensor.name, sharded, tensor.name));
    EXPECT_EQ(tensor.shape, sharded.at(tensor.name).shape);
    moments += tensor.name.ends_with(".exp_avg_sq");
  }
  EXPECT_EQ(moments, 21);  // of 2 layers of 9 parameters, and of 3 more
  EXPECT_EQ(sharded.number("train_state.step"), 3);
  EXPECT_EQ(sharded.number("optimizer.state.norm.weight.step"), 3);
  EXPECT_EQ(sharded.number("optimizer.param_groups.norm.weight.eps"), 1e-8);
  EXPECT_EQ(sharded.number("norm.weight"), std::nullopt);
  EXPECT_EQ(file.number("step"), 3);
  for (const char* name : {"step", "optimizer.state.norm.weight.step", "norm.weight"}) EXPECT_TRUE(file.contains(name));
  for (const char* name : {"train_state.step", "optimizer.param_groups.norm.weight.eps", "norm.weight"})
    EXPECT_TRUE(sharded.contains(name));
  EXPECT_FALSE(file.contains("iteration"));
  EXPECT_FALSE(sharded.contains("step"));
  EXPECT_EQ(file.number("optimizer.state.norm.weight.step"), 3);
}

TEST_F(ForeignFilesTest, PartsOfTensorsMatchFullTensors) {
  DistributedCheckpoint sharded(unpack("torchtitan"));
  TorchFiles file({unpack("state_dict") / "run.pt"});
  const std::string name = "layers.1.attention.wq.weight";
  const Tensor whole = sharded.read_all(name, DType::F32, device_);
  const Box part{{16, 16}, {6, 3}, {5, 2}};  // in both shards, which have 8 rows each
  for (TensorFiles* files : std::initializer_list<TensorFiles*>{&sharded, &file}) {
    const Tensor values = files->read(name, part, DType::F32, device_);
    for (i64 row = 0; row < 5; ++row)
      for (i64 column = 0; column < 2; ++column)
        EXPECT_EQ(load(values, row * 2 + column), load(whole, (row + 6) * 16 + column + 3));
  }
}

TEST_F(ForeignFilesTest, NumberedOptimizerStatesAreNamedAfterParameters) {
  TorchFiles files({test::foreign_golden() / "numbered.pt"});
  for (const char* name : {"0.weight", "0.bias", "1.weight", "1.bias"}) {
    ASSERT_NE(files.find(name), nullptr) << name;
    EXPECT_EQ(files.at(str("optimizer.state.", name, ".exp_avg")).shape, files.at(name).shape);
    EXPECT_EQ(files.number(str("optimizer.state.", name, ".step")), 1);
  }
  EXPECT_EQ(files.number("iteration"), 1);
  EXPECT_EQ(TorchFiles({test::foreign_golden() / "numbered.pt"}, /*ignores_optimizer=*/true).tensors().size(), 4);
}

TEST_F(ForeignFilesTest, ReadsStackedLayersOfMegatronCore) {
  DistributedCheckpoint sharded(unpack("megatron_dist"));
  EXPECT_EQ(sharded.at("decoder.layers.self_attention.linear_qkv.weight").shape, (Shape{2, 32, 16}));
  EXPECT_EQ(sharded.at("optimizer.state.exp_avg.output_layer.weight").shape, (Shape{24, 16}));
  const MappedFile content(folder_ / "megatron_dist/common.pt");
  const TorchFile common(content.bytes(), "common.pt");
  const PickleValue* arguments = common.root().find("args");
  ASSERT_NE(arguments, nullptr);
  EXPECT_TRUE(arguments->is_object("argparse.Namespace"));
  EXPECT_EQ(arguments->find("num_query_groups")->integer, 2);
}

TEST_F(ForeignFilesTest, RejectsDamagedDistributedCheckpoints) {
  const Path folder = unpack("torchtitan");
  const auto error = [&] {
    return error_of([&] {
      DistributedCheckpoint files(folder);
      for (const FileTensor& tensor : files.tensors())
        if (tensor.type != SafeType::Other) files.read_all(tensor.name, DType::F32, device_);
    });
  };
  ASSERT_EQ(error(), "");
  const std::string shard = read_text_file(folder / "__1_0.distcp"), metadata = read_text_file(folder / ".metadata");
  write_file_atomic(folder / "__1_0.distcp", shard.substr(0, shard.size() / 2));
  EXPECT_CONTAINS(error(), "the file is truncated");
  std::string changed = shard;
  for (std::size_t i = 0; i < changed.size(); i += 997) changed[i] = static_cast<char>(changed[i] ^ 0x55);
  write_file_atomic(folder / "__1_0.distcp", changed);
  EXPECT_NE(error(), "");
  fs::remove(folder / "__1_0.distcp");
  EXPECT_CONTAINS(error(), "__1_0.distcp");
  write_file_atomic(folder / "__1_0.distcp", shard);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = metadata;
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    EXPECT_NE(text, metadata) << from;
    write_file_atomic(folder / ".metadata", text);
    return error();
  };
  EXPECT_CONTAINS(replaced("__1_0.distcp", "../_0.distcp"), "is not the name of a file in this folder");
  EXPECT_CONTAINS(replaced("float32", "float16"), "states float16");
  EXPECT_CONTAINS(replaced("float32", "floatxx"), "refers to torch.floatxx");
  EXPECT_CONTAINS(replaced("ChunkStorageMetadata", "ChunkStorageMetabomb"), "ChunkStorageMetabomb");
  EXPECT_CONTAINS(replaced("storage_data", "storage_dada"), "the metadata has no storage_data");
  EXPECT_CONTAINS(replaced("offsets", "offsetz"), "has no offsets");
  for (std::size_t size = 0; size < metadata.size(); size += 2011) {
    write_file_atomic(folder / ".metadata", metadata.substr(0, size));
    EXPECT_NE(error(), "") << size;
  }
}

TEST_F(ForeignFilesTest, RejectsStateDictsThatCannotBeUsed) {
  const std::string tensor = test::pickled_tensor(0, {2, 3}, {3, 1}, 6);
  EXPECT_EQ(error_of_file("}" + test::pickled("w") + tensor + "s"), "");
  EXPECT_CONTAINS(error_of_file("]"), "x.pt: contains a list instead of a dict of tensors");
  EXPECT_CONTAINS(error_of_file("}(" + test::pickled("a.w") + tensor + test::pickled("a") + "}" + test::pickled("w") +
                                tensor + "su"),
                  "the tensor a.w is stored twice");
  // A dict with two names, and one in itself.
  EXPECT_CONTAINS(error_of_file("}(" + test::pickled("a") + "}q\1" + test::pickled("b") + std::string("h\1u")),
                  "b is a dict that also has another name");
  EXPECT_CONTAINS(error_of_file("}q\1" + test::pickled("a") + std::string("h\1s")), "also has another name");
  std::string deep = "}" + test::pickled("a");
  for (int i = 0; i < 20; ++i) deep += "}" + test::pickled("a");
  EXPECT_CONTAINS(error_of_file(deep + "K\1" + std::string(21, 's')), "nested deeper than 16 levels");
  // An optimizer with two groups, whose states are numbered.
  const std::string groups = test::pickled("param_groups") + "](}}e";
  const std::string optimizer = test::pickled("optimizer") + "}(" + test::pickled("state") +
                                "}K\0"
                                "}s"s +
                                groups + "u";
  EXPECT_CONTAINS(error_of_file("}" + optimizer + "s"), "does not have exactly one group");
  EXPECT_EQ(error_of_file("}" + optimizer + "s", /*ignores_optimizer=*/true), "");
}

}  // namespace
}  // namespace mcpp
