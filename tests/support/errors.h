// Helpers that return error messages.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/check.h"

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

namespace mcpp::test {

/// Returns the message of the Error that `f` throws, or "" if it throws none.
inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Returns the message like error_of() and checks that the error has this exit code.
inline std::string error_with(ExitCode code, const std::function<void()>& f) {
  return error_of([&] {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      throw;
    }
  });
}
inline std::string input_error(const std::function<void()>& f) {
  return error_with(ExitCode::BadInput, f);
}

}  // namespace mcpp::test
