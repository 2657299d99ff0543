// Signatures of version 4 of AWS, for requests to S3. libcurl can sign, too, but version 7.88 of Debian 12 does so
// wrongly for requests with a query or without a body.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/object_store/s3_settings.h"

namespace mcpp {

/// Part of a request that its signature covers.
struct S3RequestToSign {
  std::string method;
  std::string host = {};                            ///< with the port, unless it is the default port of the scheme
  std::string path;                                 ///< percent-encoded
  std::map<std::string, std::string> query = {};    ///< not encoded
  std::string body_hash = {};                       ///< SHA-256 of the body in hexadecimal
  std::map<std::string, std::string> headers = {};  ///< additional headers to sign, by name in lower case
};

/// Returns the query as in a URL, "?a=b&c=" or "": sorted and encoded, as the signature needs it.
std::string encode_query(const std::map<std::string, std::string>& query);

/// Returns the headers "name: value" that authenticate a request at a time such as "20130524T000000Z", in UTC.
std::vector<std::string> sign_s3_request(const S3RequestToSign& request, const S3Settings& settings,
                                         const std::string& time);

/// Returns the time now in that format.
std::string s3_time_now();

}  // namespace mcpp
