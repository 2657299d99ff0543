#include "checkpoint/format/safetensors.h"

#include <cmath>
#include <fstream>

#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/build.h"

namespace mcpp {
namespace {

class SafetensorsTest : public CheckpointTest {
 protected:
  /// Writes a file with this header and `data_bytes` bytes of data.
  Path file_with(const std::string& header, std::size_t data_bytes, std::optional<u64> claimed_size = {}) {
    const u64 size = claimed_size.value_or(header.size());
    std::string content(reinterpret_cast<const char*>(&size), sizeof(size));
    content += header + std::string(data_bytes, '\1');
    const Path path = folder_ / "x.safetensors";
    write_file_atomic(path, content);
    return path;
  }
  std::string error_with(const std::string& header, std::size_t data_bytes, std::optional<u64> claimed = {}) {
    const Path path = file_with(header, data_bytes, claimed);
    return error_of([&] { SafetensorsReader reader(path); });
  }
};

TEST_F(SafetensorsTest, RewritesGoldenFilesByteForByte) {
  for (const char* model : {"gpt2", "llama"}) {
    const Path golden = test::golden_folder() / model;
    const SafetensorsReader reader(golden);
    std::vector<SafeSpec> specs;
    for (const SafeTensor& tensor : reader.tensors()) specs.push_back({tensor.name, DType::F32, tensor.shape});
    const auto data = [&](std::size_t i) { return reader.read(reader.tensors()[i], DType::F32, device_); };
    write_safetensors(folder_, specs, data);
    EXPECT_TRUE(read_text_file(folder_ / "model.safetensors") == read_text_file(golden / "model.safetensors")) << model;

    write_safetensors(folder_ / "split", specs, data, 100'000);
    const SafetensorsReader split(folder_ / "split");
    ASSERT_EQ(split.tensors().size(), specs.size());
    for (const SafeTensor& tensor : reader.tensors()) {
      ASSERT_TRUE(std::ranges::equal(split.bytes(split.at(tensor.name)), reader.bytes(tensor)));
    }
    EXPECT_GT(std::distance(std::filesystem::directory_iterator(folder_ / "split"), {}), 5);
    std::filesystem::remove_all(folder_ / "split");
  }
}

TEST_F(SafetensorsTest, OrdersTensorsByElementSizeThenName) {
  const std::vector<SafeSpec> specs{{"b", DType::BF16, {3}},
                                    {"z", DType::F32, {1}},
                                    {"c", DType::F64, {1}},
                                    {"a", DType::F32, {2}},
                                    {"h", DType::F16, {3}}};
  write_safetensors(folder_, specs, [&](std::size_t i) { return numbered("x", specs[i].shape, specs[i].dtype).data; });
  const SafetensorsReader reader(folder_);
  EXPECT_LT(reader.at("c").begin, reader.at("a").begin);
  EXPECT_LT(reader.at("a").begin, reader.at("z").begin);
  EXPECT_LT(reader.at("z").begin, reader.at("b").begin);
  EXPECT_EQ(reader.at("c").begin % 8, 0);
  EXPECT_EQ(load(reader.read(reader.at("b"), DType::F64, device_), 2), 2);
  EXPECT_EQ(reader.at("h").type, SafeType::F16);
  EXPECT_EQ(load(reader.read(reader.at("h"), DType::F16, device_), 2), 2);
}

TEST_F(SafetensorsTest, ReadsHalfPrecision) {
  // Compares all 65536 half-precision values with the definition.
  const std::string header = R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})";
  const Path path = file_with(header, 131072);
  std::string content = read_text_file(path);
  for (u32 i = 0; i < 65536; ++i) {
    const u16 half = static_cast<u16>(i);
    std::memcpy(content.data() + 8 + header.size() + 2 * i, &half, 2);
  }
  write_file_atomic(path, content);
  const SafetensorsReader reader(path);
  const Tensor t = reader.read(reader.at("h"), DType::F32, device_),
               unconverted = reader.read(reader.at("h"), DType::F16, device_);
  for (u32 i = 0; i < 65536; ++i) ASSERT_EQ(unconverted.data<Float16>()[i].bits, i);
  for (u32 i = 0; i < 65536; ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    const float value = t.data<float>()[i];
    ASSERT_EQ(std::signbit(value), i >> 15 != 0);
    if (exponent == 31 && fraction != 0) {
      ASSERT_TRUE(std::isnan(value));
      continue;
    }
    double expected = std::ldexp(exponent ? 1024 + fraction : fraction, (exponent ? exponent : 1) - 25);
    if (exponent == 31) expected = INFINITY;
    ASSERT_EQ(std::abs(value), expected) << i;
  }
}

TEST_F(SafetensorsTest, RejectsHostileHeaders) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(error_with(good, 8), "");
  EXPECT_EQ(error_with(good + "     ", 8), "") << "padding with spaces";
  EXPECT_EQ(error_with(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), "") << "a scalar";
  EXPECT_EQ(error_with(R"({"a":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]}})", 0), "") << "an empty tensor";
  EXPECT_EQ(error_with(R"({"__metadata__":{"format":"pt"}})", 0), "");

  EXPECT_CONTAINS(error_with(good, 8, 1000), "beyond the end");
  EXPECT_CONTAINS(error_with(good, 8, u64{1} << 63), "larger than allowed");
  EXPECT_CONTAINS(error_with(good, 8, 0), "does not begin with {");
  EXPECT_CONTAINS(error_with(good, 8, good.size() - 1), "not valid JSON");
  EXPECT_CONTAINS(error_with(good, 7), "the file has 7");
  EXPECT_CONTAINS(error_with(good, 9), "the file has 9");
  EXPECT_CONTAINS(error_with("[]", 0), "does not begin with {");
  EXPECT_CONTAINS(error_with("{\"\xff\":1}", 0), "not valid JSON");
  EXPECT_CONTAINS(error_with(R"({"a":1})", 0), "not a JSON object");
  EXPECT_CONTAINS(error_with("{\"a\":" + std::string(1000, '['), 0), "nested deeper");
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_CONTAINS(error_with("{" + a + "," + a + "}", 8), "appears twice");
  EXPECT_CONTAINS(error_with("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "overlaps");
  EXPECT_CONTAINS(error_with("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16), "gap");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "data_offsets");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", 8), "data_offsets");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8), "data_offsets");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), "unknown dtype 'F33'");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "do not fit");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8),
                  "is too large: 2^63 bytes or more");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8),
                  "'shape'");
  EXPECT_CONTAINS(error_with(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8), "'shape'");
  write_file_atomic(folder_ / "tiny.safetensors", "1234");
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader reader(folder_ / "tiny.safetensors"); }), "too small");
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader reader(folder_ / "none.safetensors"); }), "none.safetensors");
}

TEST_F(SafetensorsTest, ValidatesIndexFile) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::filesystem::rename(file_with(good, 8), folder_ / "one.safetensors");
  const auto error_with_index = [&](const std::string& index) {
    write_file_atomic(folder_ / "model.safetensors.index.json", index);
    return error_of([&] { SafetensorsReader reader(folder_); });
  };
  EXPECT_EQ(error_with_index(R"({"weight_map":{"a":"one.safetensors"}})"), "");
  EXPECT_CONTAINS(error_with_index(R"({"weight_map":{"b":"one.safetensors"}})"), "b is not in one.safetensors");
  EXPECT_CONTAINS(error_with_index(R"({"weight_map":{"a":"../one.safetensors"}})"), "not the name of a file");
  EXPECT_CONTAINS(error_with_index(R"({"weight_map":{"a":"two.safetensors"}})"), "two.safetensors");
  EXPECT_CONTAINS(error_with_index(R"({"weight_map":{"a":1}})"), "'a' is not a string");
  EXPECT_CONTAINS(error_with_index("{}"), "'weight_map' is missing");
}

TEST_F(SafetensorsTest, PrefersSingleFileOverIndex) {
  std::filesystem::rename(file_with(R"({"shard":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
                          folder_ / "part.safetensors");
  write_file_atomic(folder_ / "model.safetensors.index.json", R"({"weight_map":{"shard":"part.safetensors"}})");
  const SafetensorsReader shards(folder_);
  EXPECT_NE(shards.find("shard"), nullptr);
  EXPECT_FALSE(shards.ignores_index());
  std::filesystem::rename(file_with(R"({"whole":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
                          folder_ / "model.safetensors");
  const SafetensorsReader both(folder_);
  EXPECT_NE(both.find("whole"), nullptr);
  EXPECT_EQ(both.find("shard"), nullptr);
  EXPECT_TRUE(both.ignores_index());
}

TEST_F(SafetensorsTest, RandomMutationsNeverCrash) {
  const std::string original = read_text_file(test::golden_folder() / "llama/model.safetensors");
  const std::string start = original.substr(0, 4000);
  std::mt19937 random(13);
  for (int round = 0; round < 500; ++round) {
    std::string mutated = original;
    for (u64 edits = 1 + random() % 4; edits > 0; --edits)
      mutated[random() % start.size()] = static_cast<char>(random());
    const Path path = folder_ / "m.safetensors";
    std::ofstream(path, std::ios::binary) << mutated;
    error_of([&] {
      const SafetensorsReader reader(path);
      for (const SafeTensor& tensor : reader.tensors()) reader.read(tensor, DType::F32, device_);
    });
  }
}

}  // namespace
}  // namespace mcpp
