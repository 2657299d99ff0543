// Requests to an object store that fails in many ways.
#include "base/object_store/s3_client.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "base/object_store/s3_transfer.h"
#include "tests/support/errors.h"
#include "tests/support/s3_server.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using test::S3Fault;
using test::S3Request;

std::string text_of(i64 bytes) {
  std::string text(static_cast<std::size_t>(bytes), '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 + i / 1000);
  return text;
}

class S3ClientTest : public testing::Test {
 protected:
  /// Makes the first `count` requests of this method fail.
  void fail_first(int count, const S3Fault& fault, const std::string& method = "") {
    server_.set_faults([=, failed = 0](const S3Request& request) mutable {
      if ((!method.empty() && request.method != method) || failed == count) return S3Fault();
      ++failed;
      return fault;
    });
  }
  std::string read(i64 offset, i64 bytes) {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    client_.read(path_, object_, offset, std::as_writable_bytes(std::span(text)));
    return text;
  }
  void put(const std::string& content) {
    client_.put(path_, content);
    object_ = client_.head(path_);
    server_.forget_requests();
  }
  /// Uploads a file of three parts.
  void upload() {
    write_file_atomic(folder_ / "file", content_);
    S3Transfer(server_.settings(), i64{5} << 20, 2).upload(folder_ / "file", path_);
  }

  const std::string content_ = text_of((i64{12} << 20) + 5);
  const S3Path path_ = S3Path::parse("s3://bucket/a b/c+d");
  const std::string stored_as_ = "/bucket/a b/c+d";
  const test::ScratchFolder folder_;
  test::S3Server server_;
  S3Client client_{server_.settings()};
  S3Object object_;
};

TEST_F(S3ClientTest, ReadsBackWhatItPuts) {
  EXPECT_FALSE(client_.find(path_).has_value());
  EXPECT_FALSE(client_.get(path_).has_value());
  put("hello world");
  EXPECT_EQ(object_.bytes, 11);
  EXPECT_EQ(client_.get(path_), "hello world");
  EXPECT_EQ(read(6, 5), "world");
  EXPECT_EQ(read(0, 11), "hello world");
  put("");
  EXPECT_EQ(object_.bytes, 0);
  EXPECT_EQ(client_.get(path_), "");
  client_.remove(path_);
  client_.remove(path_);
  EXPECT_FALSE(client_.find(path_).has_value());
}

TEST_F(S3ClientTest, ListsAllPages) {
  for (const char* key : {"f/1", "f/2", "f/g/3", "f/g/4", "f/h/5", "f2/6", "f"})
    client_.put(S3Path{"bucket", key}, str("content ", key));
  const std::vector<S3Object> objects = client_.list(S3Path::parse("s3://bucket/f"));
  ASSERT_EQ(objects.size(), 5U);
  EXPECT_EQ(objects[4].key, "f/h/5");
  EXPECT_EQ(objects[4].bytes, 13);
  EXPECT_EQ(objects[4].etag, client_.head(S3Path::parse("s3://bucket/f/h/5")).etag);
  EXPECT_EQ(client_.list_folders(S3Path::parse("s3://bucket/f")), (std::vector<std::string>{"g", "h"}));
  EXPECT_EQ(client_.list_folders(S3Path::parse("s3://bucket")), (std::vector<std::string>{"f", "f2"}));
  EXPECT_TRUE(client_.list(S3Path::parse("s3://bucket/none")).empty());
}

TEST_F(S3ClientTest, ListsTimesOfChange) {
  client_.put(path_, "content");
  constexpr std::time_t kAge = 5000;
  server_.set_object_age(kAge);
  const i64 before = std::time(nullptr);
  const std::optional<i64> modified = client_.list(S3Path::parse("s3://bucket")).at(0).modified;
  ASSERT_TRUE(modified.has_value());
  EXPECT_GE(*modified, before - kAge);
  EXPECT_LE(*modified, std::time(nullptr) - kAge);
}

/// The digest is SHA-256 of "hello".
TEST_F(S3ClientTest, SignsRequestsAndTheirBodies) {
  S3Settings settings = server_.settings();
  settings.session_token = "test-token";
  S3Client(settings).put(path_, "hello");
  const std::map<std::string, std::string> headers = server_.requests().at(0).headers;
  const std::string& signature = headers.at("authorization");
  EXPECT_TRUE(signature.starts_with("AWS4-HMAC-SHA256 Credential=test-key/")) << signature;
  EXPECT_CONTAINS(signature, "/us-east-1/s3/aws4_request");
  EXPECT_CONTAINS(signature, "x-amz-security-token");
  EXPECT_EQ(headers.at("x-amz-content-sha256"), "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  EXPECT_EQ(headers.at("x-amz-security-token"), "test-token");
  for (const auto& [name, value] : headers) EXPECT_EQ(value.find("test-secret"), std::string::npos) << name;
}

/// A store refuses signatures that are older than some minutes.
TEST_F(S3ClientTest, SignsEachAttemptSeparately) {
  put("content");
  fail_first(1, {.status = 503, .delay_seconds = 1.1});
  EXPECT_EQ(client_.get(path_), "content");
  const std::vector<S3Request> requests = server_.requests();
  ASSERT_EQ(requests.size(), 2U);
  for (const char* header : {"x-amz-date", "authorization"})
    EXPECT_NE(requests[0].headers.at(header), requests[1].headers.at(header));
}

TEST_F(S3ClientTest, RepeatsFailedRequests) {
  put(content_);
  const std::vector<S3Fault> faults{{.status = 500},
                                    {.status = 503, .error_code = "SlowDown"},
                                    {.status = 429},
                                    {.status = 400, .error_code = "RequestTimeout"},
                                    {.drops_connection = true},
                                    {.truncated_to = 1000},
                                    {.truncated_to = 0},
                                    {.shortened_to = 1000},
                                    {.has_wrong_range = true},
                                    {.drops_connection = true, .delay_seconds = 2},
                                    {.etag = "\"other\""}};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    fail_first(2, faults[i]);
    server_.forget_requests();
    EXPECT_TRUE(read(7, 1 << 20) == content_.substr(7, 1 << 20)) << "fault " << i;
    EXPECT_EQ(server_.requests().size(), 3U) << "fault " << i;
  }
}

TEST_F(S3ClientTest, FailsForRestartWhenServerStaysBroken) {
  put("content");
  for (const S3Fault& fault : {S3Fault{.status = 500, .error_code = "InternalError"}, S3Fault{.drops_connection = true},
                               S3Fault{.truncated_to = 2}, S3Fault{.shortened_to = 2}}) {
    fail_first(100, fault);
    server_.forget_requests();
    const std::string message = test::error_with(ExitCode::PeerLost, [&] { read(0, 7); });
    EXPECT_CONTAINS(message, "s3://bucket/a b/c+d");
    EXPECT_CONTAINS(message, "failed 4 times");
    EXPECT_GE(server_.requests().size(), 4U);  // libcurl repeats a request once if a reused connection was closed
  }
  server_.stop();
  EXPECT_CONTAINS(test::error_with(ExitCode::PeerLost, [&] { read(0, 7); }), server_.endpoint());
  server_.start();
  server_.set_faults({});
  EXPECT_EQ(read(0, 7), "content");
}

TEST_F(S3ClientTest, EndsRequestsThatStall) {
  put("content");
  server_.set_faults([](const S3Request&) { return S3Fault{.delay_seconds = 60}; });
  S3Client impatient(server_.settings(/*max_attempts=*/1));
  const auto start = std::chrono::steady_clock::now();
  test::error_with(ExitCode::PeerLost, [&] { impatient.get(path_); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(S3ClientTest, DoesNotRepeatRefusedRequestsAndShowsNoCredentials) {
  const auto refused_with = [&](int status, const std::string& code) {
    server_.forget_requests();
    fail_first(100, {.status = status, .error_code = code});
    const std::string message = test::input_error([&] { client_.put(path_, "x"); });
    EXPECT_EQ(server_.requests().size(), 1U);
    EXPECT_EQ(message.find("test-"), std::string::npos) << message;
    EXPECT_CONTAINS(message, "s3://bucket/a b/c+d");
    return message;
  };
  EXPECT_CONTAINS(refused_with(403, "AccessDenied"), "check the credentials");
  EXPECT_CONTAINS(refused_with(404, "NoSuchBucket"), "create the bucket");
  EXPECT_CONTAINS(refused_with(301, "PermanentRedirect"), "AWS_REGION");
  EXPECT_CONTAINS(refused_with(400, "EntityTooLarge"), "EntityTooLarge: a reason");
}

TEST_F(S3ClientTest, RejectsObjectsThatChangeWhileTheyAreRead) {
  put("content");
  server_.set_object(stored_as_, "CONTENT");
  EXPECT_CONTAINS(test::input_error([&] { read(0, 7); }), "was replaced while it was in use");
  client_.remove(path_);
  EXPECT_CONTAINS(test::input_error([&] { read(0, 7); }), "was removed while it was in use");
  EXPECT_CONTAINS(test::input_error([&] { client_.head(path_); }), "s3://bucket/a b/c+d: does not exist");
}

/// A bucket that is missing or denied is not taken for a missing object.
TEST_F(S3ClientTest, NamesBucketThatIsMissingOrDenied) {
  server_.remove_bucket("bucket");
  for (const auto& call : std::vector<std::function<void()>>{[&] { client_.find(path_); }, [&] { client_.head(path_); },
                                                             [&] { client_.get(path_); }, [&] { client_.list(path_); }})
    EXPECT_CONTAINS(test::input_error(call), "bucket");
  const std::string message = test::input_error([&] { client_.find(path_); });
  EXPECT_CONTAINS(message, "s3://bucket/a b/c+d: the object store " + server_.endpoint() + " has no bucket 'bucket'");
  EXPECT_CONTAINS(message, "create it, or correct its name");
  const S3Path other = S3Path::parse("s3://other/key");
  EXPECT_FALSE(client_.find(other).has_value());
  server_.set_faults([](const S3Request&) { return S3Fault{.status = 403}; });
  EXPECT_CONTAINS(test::input_error([&] { client_.find(other); }), "s3://other/key: refused by the object store");
  EXPECT_CONTAINS(test::input_error([&] { client_.find(other); }), "check the credentials");
  // Some credentials may read an object but not ask for the bucket.
  server_.set_faults([](const S3Request& request) { return S3Fault{.status = request.path == "/other/" ? 403 : 0}; });
  EXPECT_FALSE(client_.find(other).has_value());
}

TEST_F(S3ClientTest, LimitsSizeOfResponses) {
  put(content_);
  EXPECT_CONTAINS(test::input_error([&] { client_.get(path_, 1000); }), "the response has more than 1000 bytes");
  EXPECT_EQ(server_.requests().size(), 1U);
}

TEST_F(S3ClientTest, UploadsFilesInPartsDespiteFailures) {
  upload();
  EXPECT_TRUE(server_.objects().at(stored_as_) == content_);
  const std::vector<S3Fault> faults{
      {.status = 500}, {.drops_connection = true}, {.drops_connection = true, .ignores_request = true}};
  for (const S3Fault& fault : faults) {
    client_.remove(path_);
    fail_first(2, fault, "PUT");
    upload();
    EXPECT_TRUE(server_.objects().at(stored_as_) == content_);
  }
  EXPECT_EQ(server_.uploads_in_progress(), 0U);
}

/// The response to the last request is lost although the store has joined the parts.
TEST_F(S3ClientTest, AcceptsUploadWhoseLastResponseWasLost) {
  server_.set_faults([failed = false](const S3Request& request) mutable {
    const bool completes = request.method == "POST" && request.query.contains("uploadId");
    if (!completes || std::exchange(failed, true)) return S3Fault();
    return S3Fault{.drops_connection = true};
  });
  upload();
  EXPECT_TRUE(server_.objects().at(stored_as_) == content_);
}

TEST_F(S3ClientTest, LeavesNothingBehindWhenUploadFails) {
  server_.set_faults([](const S3Request& request) {
    return S3Fault{.status = request.query.contains("partNumber") && request.query.at("partNumber") == "2" ? 500 : 0};
  });
  test::error_with(ExitCode::PeerLost, [&] { upload(); });
  EXPECT_FALSE(server_.objects().contains(stored_as_));
  EXPECT_EQ(server_.uploads_in_progress(), 0U);
}

TEST_F(S3ClientTest, DownloadsInPartsDespiteFailures) {
  put(content_);
  server_.set_faults([count = 0](const S3Request&) mutable {
    constexpr int kPeriod = 3;
    return ++count % kPeriod == 0 ? S3Fault{.truncated_to = 100'000} : S3Fault();
  });
  std::string downloaded(content_.size(), '\0');
  S3Transfer transfer(server_.settings(/*max_attempts=*/10), i64{1} << 20);
  transfer.download(path_, object_, 1, std::ssize(content_), [&](i64 offset, std::span<const std::byte> bytes) {
    std::memcpy(downloaded.data() + offset, bytes.data(), bytes.size());
  });
  EXPECT_TRUE(downloaded.substr(1) == content_.substr(1));
  EXPECT_EQ(downloaded[0], '\0');
  const std::vector<std::byte> ranges = transfer.read_ranges(path_, object_, std::vector<i64>{5'000'000, 0, 17}, 3);
  const std::string expected = content_.substr(5'000'000, 3) + content_.substr(0, 3) + content_.substr(17, 3);
  ASSERT_EQ(ranges.size(), expected.size());
  EXPECT_EQ(std::memcmp(ranges.data(), expected.data(), expected.size()), 0);
  const auto fail_to_write = [](i64, std::span<const std::byte>) { fail(ExitCode::BadInput, "the disk is full"); };
  EXPECT_EQ(test::input_error([&] { transfer.download(path_, object_, 0, 100, fail_to_write); }), "the disk is full");
}

}  // namespace
}  // namespace mcpp
