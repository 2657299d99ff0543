// Names of objects, and settings of object stores.
#include "base/object_store/s3_settings.h"

#include <gtest/gtest.h>

#include <map>

#include "base/object_store/node_cache.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/xml_text.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

class S3SettingsTest : public testing::Test {
 protected:
  S3SettingsTest() { set("HOME", folder_.path().string()); }

  void set(const std::string& name, const std::string& value) { variables_[name] = value; }
  Environment environment() const {
    return [this](const char* name) {
      const auto it = variables_.find(name);
      return it == variables_.end() ? nullptr : it->second.c_str();
    };
  }
  S3Settings read() const { return read_s3_settings(environment()); }
  void write(const std::string& name, const std::string& text) {
    mcpp::create_directories(folder_ / ".aws");
    write_file_atomic(folder_ / (".aws/" + name), text);
  }

  const test::ScratchFolder folder_;
  std::map<std::string, std::string> variables_;
};

TEST_F(S3SettingsTest, ReadsVariablesOfAwsCli) {
  set("AWS_ACCESS_KEY_ID", "id");
  set("AWS_SECRET_ACCESS_KEY", "secret");
  set("AWS_SESSION_TOKEN", "token");
  set("AWS_ENDPOINT_URL", "http://all:1");
  set("AWS_ENDPOINT_URL_S3", "http://s3:2/");
  set("AWS_DEFAULT_REGION", "eu-west-1");
  set("AWS_REGION", "eu-west-3");
  set("AWS_MAX_ATTEMPTS", "5");
  const S3Settings settings = read();
  EXPECT_EQ(settings.access_key, "id");
  EXPECT_EQ(settings.secret_key, "secret");
  EXPECT_EQ(settings.session_token, "token");
  EXPECT_EQ(settings.endpoint, "http://s3:2");
  EXPECT_EQ(settings.region, "eu-west-3");
  EXPECT_EQ(settings.max_attempts, 5);
}

TEST_F(S3SettingsTest, ReadsProfileFromFilesOfAwsCli) {
  write("credentials",
        "# comment\n[default]\naws_access_key_id = a\naws_secret_access_key=b\n"
        "[ other ]\naws_access_key_id=c\naws_secret_access_key = d = e\naws_session_token = f\n");
  write("config",
        "[default]\nregion = eu-1\n[profile other]\nregion=eu-2\nendpoint_url = http://x\ns3 =\n  region = nested\n");
  EXPECT_EQ(read().access_key, "a");
  EXPECT_EQ(read().region, "eu-1");
  EXPECT_EQ(read().endpoint, "");
  set("AWS_PROFILE", "other");
  EXPECT_EQ(read().access_key, "c");
  EXPECT_EQ(read().secret_key, "d = e");
  EXPECT_EQ(read().session_token, "f");
  EXPECT_EQ(read().region, "eu-2");
  EXPECT_EQ(read().endpoint, "http://x");
}

/// Half of a pair of variables and half of a profile would be credentials of two accounts.
TEST_F(S3SettingsTest, DoesNotMixCredentialsOfVariablesAndFiles) {
  write("credentials", "[default]\naws_access_key_id=file\naws_secret_access_key=hidden\naws_session_token=t\n");
  set("AWS_ACCESS_KEY_ID", "variable");
  const std::string message = test::input_error([&] { read(); });
  EXPECT_CONTAINS(message, "AWS_SECRET_ACCESS_KEY");
  EXPECT_EQ(message.find("hidden"), std::string::npos);
  set("AWS_SECRET_ACCESS_KEY", "also");
  EXPECT_EQ(read().session_token, "");
}

TEST_F(S3SettingsTest, RejectsMissingCredentialsAndMalformedValues) {
  EXPECT_CONTAINS(test::input_error([&] { read(); }), "AWS_ACCESS_KEY_ID");
  set("AWS_ACCESS_KEY_ID", "id");
  set("AWS_SECRET_ACCESS_KEY", "secret");
  EXPECT_EQ(read().region, "us-east-1");
  set("AWS_ENDPOINT_URL", "host:9000");
  EXPECT_CONTAINS(test::input_error([&] { read(); }), "'host:9000' is not a URL");
  set("AWS_ENDPOINT_URL", "http://host:9000");
  set("AWS_MAX_ATTEMPTS", "0");
  EXPECT_CONTAINS(test::input_error([&] { read(); }), "AWS_MAX_ATTEMPTS: '0'");
}

TEST_F(S3SettingsTest, FindsFolderOfNodeCache) {
  EXPECT_EQ(read_node_cache_settings(environment()).folder, folder_ / ".cache/megatron_cpp");
  set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(read_node_cache_settings(environment()).folder, "/xdg/megatron_cpp");
  set("MEGATRON_CPP_CACHE", "/disk");
  set("MEGATRON_CPP_CACHE_BYTES", "1000");
  EXPECT_EQ(read_node_cache_settings(environment()).folder, "/disk");
  EXPECT_EQ(read_node_cache_settings(environment()).max_bytes, 1000);
  set("MEGATRON_CPP_CACHE_BYTES", "10G");
  EXPECT_CONTAINS(test::input_error([&] { read_node_cache_settings(environment()); }), "'10G'");
}

TEST(S3PathTest, ParsesBucketAndKey) {
  const S3Path path = S3Path::parse("s3://bucket.1/runs/a/");
  EXPECT_EQ(path.bucket, "bucket.1");
  EXPECT_EQ(path.key, "runs/a");
  EXPECT_EQ((path / "b").string(), "s3://bucket.1/runs/a/b");
  EXPECT_EQ((S3Path::parse("s3://bucket") / "b").string(), "s3://bucket/b");
  EXPECT_EQ(S3Path::parse(Path("s3://bucket/x") / "y").key, "x/y");
}

TEST(S3PathTest, RejectsOtherNames) {
  EXPECT_CONTAINS(test::input_error([] { S3Path::parse("/a/b"); }), "s3://");
  for (const char* text :
       {"s3://", "s3:///key", "s3://ab/key", "s3://Bucket/key", "s3://bu_cket/key", "s3://-bucket/k"})
    EXPECT_CONTAINS(test::input_error([&] { S3Path::parse(text); }), "is not the name of a bucket");
  EXPECT_CONTAINS(test::input_error([] { S3Path::parse("s3://bucket/a//b"); }), "empty folder name");
  for (const char* text : {"s3://bucket/.", "s3://bucket/../a", "s3://bucket/a/../b", "s3://bucket/a/./b/"})
    EXPECT_CONTAINS(test::input_error([&] { S3Path::parse(text); }), "no relative paths");
  EXPECT_EQ(S3Path::parse("s3://bucket/.a/b..").key, ".a/b..");
  EXPECT_CONTAINS(test::input_error([] { S3Path::parse("s3://bucket/" + std::string(1025, 'a')); }), "1025 bytes");
  EXPECT_FALSE(is_s3_path(Path("/s3/a")));
  EXPECT_FALSE(is_s3_path(Path("s3/a")));
}

TEST(S3PathTest, EncodesReservedBytes) {
  EXPECT_EQ(percent_encode("a b/c+\xC3\xA4~", true), "a%20b/c%2B%C3%A4~");
  EXPECT_EQ(percent_encode("a/b", false), "a%2Fb");
}

TEST(XmlTextTest, ReadsElementsAndEntities) {
  const std::string text = "<A><K>a&amp;b&quot;&#13;&x;</K></A><A><K>second</K></A><A><K>cut";
  ASSERT_EQ(xml_elements(text, "A").size(), 2U);
  EXPECT_EQ(first_xml_value(text, "K"), "a&b\"\r&x;");
  EXPECT_EQ(first_xml_value(xml_elements(text, "A")[1], "K"), "second");
  EXPECT_EQ(first_xml_value(text, "B"), "");
  EXPECT_EQ(to_xml("<\"&\">"), "&lt;&quot;&amp;&quot;&gt;");
}

}  // namespace
}  // namespace mcpp
