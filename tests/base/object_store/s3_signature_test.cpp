// Signatures, with the examples of Amazon's documentation ("Authenticating Requests (AWS Signature Version 4)").
#include "base/object_store/s3_signature.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

class S3SignatureTest : public testing::Test {
 protected:
  S3SignatureTest() {
    settings_.region = "us-east-1";
    settings_.access_key = "AKIAIOSFODNN7EXAMPLE";
    settings_.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
  }

  std::string signature(S3RequestToSign request, std::string_view body = "") const {
    request.host = "examplebucket.s3.amazonaws.com";
    request.body_hash = to_hex(sha256(body));
    const std::string line = sign_s3_request(request, settings_, "20130524T000000Z").back();
    EXPECT_CONTAINS(line, "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,");
    return line.substr(line.find("Signature=") + std::string("Signature=").size());
  }

  S3Settings settings_;
};

TEST_F(S3SignatureTest, MatchesPublishedSignatures) {
  EXPECT_EQ(signature({.method = "GET", .path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(
      signature({.method = "PUT",
                 .path = "/test%24file.text",
                 .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                "Welcome to Amazon S3."),
      "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(signature({.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature({.method = "GET", .path = "/", .query = {{"max-keys", "2"}, {"prefix", "J"}}}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_F(S3SignatureTest, CoversSessionToken) {
  settings_.session_token = "token";
  const std::vector<std::string> lines = sign_s3_request({.method = "GET", .path = "/"}, settings_, s3_time_now());
  EXPECT_CONTAINS(lines.back(), "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,");
  for (const std::string& line : lines) EXPECT_EQ(line.find("wJalr"), std::string::npos);
}

TEST(EncodeQueryTest, SortsAndEncodes) {
  EXPECT_EQ(encode_query({}), "");
  EXPECT_EQ(encode_query({{"uploads", ""}}), "?uploads=");
  EXPECT_EQ(encode_query({{"prefix", "a b/c"}, {"delimiter", "/"}}), "?delimiter=%2F&prefix=a%20b%2Fc");
}

}  // namespace
}  // namespace mcpp
