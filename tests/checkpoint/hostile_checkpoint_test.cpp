// Checkpoints that were made or changed maliciously lead to a named error or an older checkpoint, never to a crash, a
// hang or wrong weights. The fields of manifests are tested in manifest_test.cpp, accidental damage in
// damaged_checkpoint_test.cpp.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "tests/checkpoint/checkpoint_fixture.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class HostileCheckpointTest : public CheckpointTest {
 protected:
  HostileCheckpointTest() {
    save(1, tensors(1));
    save(2, tensors(2));
    manifest_ = Json::parse(read_text_file(newest_ / kManifestName));
  }
  std::vector<NamedShard> tensors(i64 first) {
    return {numbered("model/a", Region{{{2, 6}, {0, 0}, {2, 6}}, 0, 7}, DType::F32, first),
            numbered("model/a", Region{{{2, 6}, {0, 0}, {2, 6}}, 7, 12}, DType::F32, first),
            numbered("model/b", {3, 4}, DType::BF16, first)};
  }
  /// Writes the manifest with a matching checksum, as an attacker who knows the format would.
  void write_manifest_text(const std::string& text) const {
    overwrite(newest_ / kManifestName, text);
    overwrite(newest_ / kManifestChecksumName, checksum_hex(text) + "\n");
  }
  /// Replaces a file of the checkpoint and updates all its checksums.
  void replace_shard(const std::string& content) const {
    overwrite(shard_, content);
    Json json = manifest_;
    json["files"][0]["bytes"] = content.size();
    json["files"][0]["xxh3"] = checksum_hex(content);
    write_manifest_text(json.dump());
  }
  /// Reads everything as a load does. The result is an error or exactly what was saved.
  std::string error_of_loading() {
    return error_of([&] {
      CheckpointReader reader(newest_);
      for (const TensorEntry& tensor : reader.manifest().tensors) reader.read_full_tensor(tensor.name, device_);
    });
  }
  void expect_fallback() {
    testing::internal::CaptureStderr();
    EXPECT_EQ(newest_good(folder_, log_), folder_ / "iter_0000001");
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_CONTAINS(warning, "iter_0000002");
  }

  const Path newest_ = folder_ / "iter_0000002";
  const Path shard_ = newest_ / "shard_00000-of-00001.h5";
  Json manifest_;
};

TEST_F(HostileCheckpointTest, IsRejectedWhenAnyFileHasFlippedBitsOrIsTruncated) {
  for (const auto& entry : fs::directory_iterator(newest_)) {
    const std::string original = read_text_file(entry.path());
    const std::size_t step = std::max<std::size_t>(1, original.size() / 150);
    const auto attempt = [&](const std::string& content) {
      overwrite(entry.path(), content);
      ASSERT_FALSE(find_problems(newest_).empty()) << entry.path();
    };
    for (std::size_t at = 0; at < original.size(); at += step) {
      std::string content = original;
      content[at] ^= static_cast<char>(1 << (at % 8));
      attempt(content);
      attempt(original.substr(0, at));
    }
    attempt(original + '\0');
    expect_fallback();
    overwrite(entry.path(), original);
  }
  EXPECT_TRUE(find_problems(newest_).empty());
}

/// If the checksums match, only HDF5's checks and our bounds checks prevent wrong weights from a changed layout.
TEST_F(HostileCheckpointTest, DoesNotCrashWhenShardDiffersFromManifest) {
  const std::string original = read_text_file(shard_);
  for (std::size_t at = 0; at < std::min<std::size_t>(original.size(), 6000); at += 7) {
    std::string content = original;
    content[at] ^= 0x11;
    replace_shard(content);
    error_of_loading();  // an error, or the values in the file, but no crash
  }
  const std::size_t all = original.size();
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, all / 4, all / 2, all - 1}) {
    replace_shard(original.substr(0, size));
    EXPECT_NE(error_of_loading(), "") << size;
    expect_fallback();
  }
  replace_shard("not HDF5 at all, but long enough for all elements " + std::string(8192, 'x'));
  EXPECT_CONTAINS(error_of_loading(), "cannot open");
  expect_fallback();
  replace_shard(original);
  EXPECT_EQ(error_of_loading(), "");
}

TEST_F(HostileCheckpointTest, RejectsShapesThatDifferFromFile) {
  const auto error_after = [&](const std::function<void(Json&)>& change) {
    Json json = manifest_;
    change(json);
    write_manifest_text(json.dump());
    return error_of_loading();
  };
  const auto tensor_b = [](Json& json) -> Json& { return json["tensors"][1]; };
  EXPECT_EQ(error_after([](Json&) {}), "");
  EXPECT_CONTAINS(error_after([&](Json& j) { tensor_b(j)["dtype"] = "fp32"; }), "model/b");
  EXPECT_CONTAINS(error_after([&](Json& j) {
                    for (Json* part : {&tensor_b(j), &tensor_b(j)["shards"][0]}) (*part)["shape"] = Json::array({2, 4});
                    tensor_b(j)["shards"][0]["flat"] = Json::array({0, 8});
                  }),
                  "elements; the manifest states 8");
  EXPECT_CONTAINS(error_after([&](Json& j) { tensor_b(j)["shards"][0]["dataset"] = "model/a/0"; }), "model/a/0");
  EXPECT_CONTAINS(error_after([&](Json& j) { tensor_b(j)["shards"][0]["dataset"] = "/"; }), "HDF5 reports");
  EXPECT_CONTAINS(error_after([&](Json& j) { tensor_b(j)["shards"][0]["dataset"] = "../../x"; }), "../../x");
}

/// Any number in the manifest is either rejected or has no effect on the weights.
TEST_F(HostileCheckpointTest, SurvivesExtremeValuesAnywhereInManifest) {
  const std::vector<Json> values{i64{1} << 62,
                                 -(i64{1} << 62),
                                 std::numeric_limits<i64>::max(),
                                 std::numeric_limits<i64>::min(),
                                 std::numeric_limits<u64>::max(),
                                 -1,
                                 0,
                                 7,
                                 1e308,
                                 -0.5,
                                 nullptr,
                                 true,
                                 "7",
                                 Json::array(),
                                 Json::object(),
                                 Json::array({1, 2, 3, 4, 5, 6, 7, 8, 9})};
  const Json flat = manifest_.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (const Json& extreme : values) {
      Json json = manifest_;
      json[Json::json_pointer(pointer)] = extreme;
      const std::string text = json.dump();
      const std::string error = error_of([&] { validate(parse_manifest(text, "m"), "m"); });
      const bool is_name = (pointer.ends_with("/name") || pointer.ends_with("/dataset")) && extreme.is_string();
      if (pointer.starts_with("/tensors/") && extreme != value && !is_name) {
        EXPECT_NE(error, "") << pointer << " = " << extreme;
      }
    }
  }
}

TEST_F(HostileCheckpointTest, RejectsNumbersThatAreNotJson) {
  const std::string text = manifest_.dump();
  const std::size_t at = text.find("\"bytes\":") + 8;
  const std::size_t end = text.find_first_of(",}", at);
  for (const char* number : {"NaN", "Infinity", "-inf", "1e999", "0x10", "01", "1e", "--1", "99999999999999999999"}) {
    write_manifest_text(text.substr(0, at) + number + text.substr(end));
    EXPECT_CONTAINS(error_of_loading(), kManifestName.data());
    expect_fallback();
  }
}

TEST_F(HostileCheckpointTest, RejectsLinksAndPipesInPlaceOfFiles) {
  const std::string original = read_text_file(shard_);
  const Path outside = folder_ / "outside";
  std::string other = original;
  other.back() ^= 1;
  overwrite(outside, other);
  const auto link_to = [&](const Path& target) {
    fs::remove(shard_);
    fs::create_symlink(target, shard_);
  };
  link_to(outside);  // a file with different values
  EXPECT_CONTAINS(find_problems(newest_)[0], "differs from its checksum");
  expect_fallback();
  for (const Path& target : {Path("/dev/zero"), Path("/dev/null"), Path("/etc"), shard_, folder_ / "nowhere"}) {
    link_to(target);
    EXPECT_FALSE(find_problems(newest_).empty()) << target;
    EXPECT_NE(error_of_loading(), "") << target;
    expect_fallback();
  }
  for (const Path& path : {shard_, newest_ / kManifestName, newest_ / kManifestChecksumName}) {
    const std::string content = path == shard_ ? original : read_text_file(path);
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    expect_fallback();  // no call blocks waiting for a writer of the pipe
    fs::remove(path);
    overwrite(path, content);
  }
  EXPECT_EQ(error_of_loading(), "");
}

TEST_F(HostileCheckpointTest, RejectsFileNamesOutsideFolder) {
  for (const char* name : {"../iter_0000001/shard_00000-of-00001.h5", "/etc/passwd", "..", ".", "", "a/b", "./x"}) {
    Json json = manifest_;
    json["files"][0]["name"] = name;
    write_manifest_text(json.dump());
    EXPECT_CONTAINS(error_of_loading(), "is not the name of a file in the folder");
    expect_fallback();
  }
}

}  // namespace
}  // namespace mcpp
