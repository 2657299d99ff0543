#include "checkpoint/format/manifest.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class ManifestTest : public CheckpointTest {
 protected:
  ManifestTest() {
    std::vector<NamedShard> shards{numbered("model/b", {3})};
    for (i64 i = 0; i < 3; ++i) {
      shards.push_back(numbered("model/a", Region{{{2, 6}, {0, 0}, {2, 6}}, 4 * i, 4 * i + 4}));
    }
    directory_ = save(1, shards);
    text_ = read_text_file(directory_ / kManifestName);
  }
  /// Returns the error of parsing and validating `text`.
  static std::string error_with(const std::string& text) {
    return error_of([&] { validate(parse_manifest(text, "m"), "m"); });
  }
  /// Returns the error of parsing and validating the manifest after a change to its JSON.
  std::string error_after(const std::function<void(Json&)>& change) const {
    Json json = Json::parse(text_);
    change(json);
    return error_with(json.dump());
  }
  Path directory_;
  std::string text_;
};

TEST_F(ManifestTest, RoundTrips) {
  EXPECT_EQ(to_json(parse_manifest(text_, "m")), text_);
}

TEST_F(ManifestTest, RejectsHostileValuesByName) {
  EXPECT_EQ(error_after([](Json&) {}), "");
  const auto shard = [](Json& json, int i = 0) -> Json& { return json["tensors"][0]["shards"][i]; };
  const i64 huge = std::numeric_limits<i64>::max();
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["name"] = "../../etc/passwd"; }), "not the name of a file");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["name"] = "/etc/passwd"; }), "not the name of a file");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["name"] = ".."; }), "not the name of a file");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["bytes"] = -1; }), "'bytes'");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["bytes"] = 18446744073709551615u; }), "too large");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["bytes"] = 1.5; }), "not an integer");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["xxh3"] = "zz"; }), "32 hexadecimal");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"].push_back(j["files"][0]); }), "listed twice");
  EXPECT_CONTAINS(error_after([](Json& j) { j["tensors"].push_back(j["tensors"][1]); }), "listed twice");
  EXPECT_CONTAINS(error_after([](Json& j) { std::swap(j["tensors"][0], j["tensors"][1]); }), "not in order");
  EXPECT_CONTAINS(error_after([](Json& j) { j["tensors"][0]["dtype"] = "fp8"; }), "not an element type");
  EXPECT_CONTAINS(error_after([](Json& j) {
                    j["tensors"][0]["shape"] = Json::array({1 << 30, 1 << 30});
                  }),
                  "too large");
  EXPECT_CONTAINS(error_after([](Json& j) { j["tensors"][0]["shape"] = Json(std::vector<i64>(9, 1)); }), "elements");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["offset"] = Json::array({0, huge}); }), "model/a");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["shape"] = Json::array({2}); }), "rank");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["flat"] = Json::array({0, 5}); }), "is in two shards");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["flat"] = Json::array({0, 3}); }), "only 11 of 12");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["flat"] = Json::array({0, 13}); }), "do not lie in a box");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["file"] = 1; }), "file 1 does not exist");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j)["dataset"] = ""; }), "'dataset'");
  EXPECT_CONTAINS(error_after([&](Json& j) { shard(j).erase("flat"); }), "'flat' is missing");
  EXPECT_CONTAINS(error_after([](Json& j) { j["files"][0]["bytes"] = 8; }), "larger than its file");
  EXPECT_CONTAINS(error_after([](Json& j) { j["version"] = 2; }), "version 2");
  EXPECT_CONTAINS(error_after([](Json& j) { j["format"] = "other"; }), "not a checkpoint");
  EXPECT_CONTAINS(error_after([](Json& j) { j["state"]["iteration"] = "x"; }), "'iteration'");
}

TEST_F(ManifestTest, RejectsOverflowingNumbers) {
  const i64 huge = std::numeric_limits<i64>::max();
  const auto without_shards = [](const Json& shape) {
    return [shape](Json& j) { j["tensors"][0]["shape"] = shape, j["tensors"][0]["shards"] = Json::array(); };
  };
  EXPECT_CONTAINS(error_after(without_shards({i64{1} << 62, 4})), "too large");
  EXPECT_EQ(error_after(without_shards({0, i64{1} << 62, 4})), "");
  EXPECT_CONTAINS(error_after([&](Json& j) {
                    j["files"].push_back(j["files"][0]);
                    j["files"][1]["name"] = "other.h5";
                    j["files"][0]["bytes"] = j["files"][1]["bytes"] = huge;
                  }),
                  "the files are too large: 2^63 bytes or more in total");
  EXPECT_CONTAINS(error_after([&](Json& j) {
                    Json& tensor = j["tensors"][1];
                    Json& shard = tensor["shards"][0];
                    tensor["shape"] = shard["shape"] = Json::array({i64{1} << 56});
                    shard["flat"] = Json::array({0, i64{1} << 56});
                    tensor["shards"] = Json(std::vector<Json>(130, shard));
                    j["files"][0]["bytes"] = huge;
                  }),
                  "is in two shards");
}

TEST_F(ManifestTest, ComparesManyBoxesQuickly) {
  Manifest manifest = parse_manifest(text_, "m");
  TensorEntry& tensor = manifest.tensors[0];
  const ShardEntry one = tensor.shards[0];
  const i64 rows = 4, columns = 10000;
  tensor.global = {rows, columns};
  tensor.shards.clear();
  for (i64 i = 0; i < rows * columns; ++i) {
    ShardEntry shard = one;
    shard.box = {tensor.global, {i / columns, i % columns}, {1, 1}};
    shard.flat_begin = 0, shard.flat_end = 1;
    tensor.shards.push_back(shard);
  }
  manifest.files[0].bytes = 1'000'000;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(error_of([&] { validate(manifest, "m"); }), "");
  tensor.shards.back().box.offset = {1, 1};
  EXPECT_CONTAINS(error_of([&] { validate(manifest, "m"); }), "is in two shards");
  tensor.shards.back().box = {tensor.global, {1, 1}, {1, 2}};
  EXPECT_CONTAINS(error_of([&] { validate(manifest, "m"); }), "the boxes at [1, 1] and [1, 1] overlap");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(ManifestTest, RejectsTextThatIsNotManifest) {
  EXPECT_CONTAINS(error_with(""), "not valid JSON");
  EXPECT_CONTAINS(error_with("[]"), "not a JSON object");
  EXPECT_CONTAINS(error_with("{\"format\": \"\xff\"}"), "not valid JSON");
  EXPECT_CONTAINS(error_with("{\"a\": 1, \"a\": 2}"), "'a' appears twice");
  EXPECT_CONTAINS(error_with("{\"a\":" + std::string(100000, '[')), "nested deeper");
  EXPECT_CONTAINS(error_with("{\"a\":" + std::string(17, '[') + std::string(17, ']') + "}"), "nested deeper");
}

/// Validation with the checksum finds all mutations. Without it, parsing throws or returns a manifest, but never
/// crashes.
TEST_F(ManifestTest, RandomMutationsNeverCrash) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string mutated = text_;
    for (u64 edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % mutated.size();
      switch (random() % 4) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.erase(at, random() % 20);
          break;
        case 2:
          mutated.insert(at, std::to_string(random()));
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 40));
      }
    }
    error_with(mutated);
    if (round % 10 != 0) continue;  // Only every tenth mutation is written to disk, which is slow.
    write_file_atomic(directory_ / kManifestName, mutated);
    if (mutated == text_)
      EXPECT_EQ(error_of([&] { read_manifest(directory_); }), "");
    else
      EXPECT_CONTAINS(error_of([&] { read_manifest(directory_); }), "manifest.json is damaged");
  }
}

}  // namespace
}  // namespace mcpp
