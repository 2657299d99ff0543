// Server and credentials of an S3-compatible store, from the same variables and files as the AWS CLI.
#pragma once
#include <functional>
#include <string>

#include "base/types.h"

namespace mcpp {

/// Returns the value of an environment variable, or null. Normally std::getenv; tests replace it.
using Environment = std::function<const char*(const char*)>;

/// Server and credentials. No member is ever printed except `endpoint` and `region`.
struct S3Settings {
  std::string endpoint;  ///< URL of the server without a path; "" = Amazon's server of the region
  std::string region;
  std::string access_key, secret_key;
  std::string session_token;         ///< "" unless the credentials are temporary
  std::string ca_file;               ///< certificates of trusted authorities; "" = the system's
  int max_attempts = 12;             ///< attempts of each request; with the delays in between these take about a minute
  double first_delay_seconds = 0.1;  ///< before the second attempt; doubles with each attempt
  double stall_seconds = 20;         ///< a request that transfers nothing for this long has failed

  bool operator==(const S3Settings&) const = default;
};

/// Reads the settings. Credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile
/// AWS_PROFILE ("default") of ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE).
/// Server: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or `endpoint_url` of the profile, and AWS_REGION, AWS_DEFAULT_REGION
/// or `region`. Also AWS_CA_BUNDLE and AWS_MAX_ATTEMPTS. Throws BadInput, without any credentials in the message, if
/// there are none or if a value is malformed.
S3Settings read_s3_settings(const Environment& environment);
S3Settings read_s3_settings();  ///< reads the environment of the process

}  // namespace mcpp
