#include "base/utc_time.h"

#include <gtest/gtest.h>

namespace mcpp {
namespace {

TEST(UtcTimeTest, FormatsTime) {
  const std::chrono::system_clock::time_point time(std::chrono::milliseconds(1795366801999));
  EXPECT_EQ(utc_text(time, kIsoTime), "2026-11-22T17:00:01Z");
  EXPECT_EQ(utc_text(time, kCompactIsoTime), "20261122T170001Z");
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(std::chrono::milliseconds(-1)), kIsoTime),
            "1969-12-31T23:59:59Z");
}

TEST(UtcTimeTest, ParsesFormattedTime) {
  EXPECT_DOUBLE_EQ(parse_utc("1970-01-02T00:00:01.250Z").value(), 86401.25);
  EXPECT_DOUBLE_EQ(parse_utc("2026-11-22T17:00:00Z").value(), 1795366800);
  for (const char* text : {"", "now", "2026-11-22", "2026-11-22T17:00:00", "2026-11-22T17:00:00.5+01:00"})
    EXPECT_FALSE(parse_utc(text).has_value()) << text;
  const auto before = std::chrono::system_clock::now();
  const double now = parse_utc(utc_now()).value();
  EXPECT_EQ(utc_now().size(), std::string("2026-01-31T23:59:59.123Z").size());
  EXPECT_NEAR(now, std::chrono::duration<double>(before.time_since_epoch()).count(), 10);
}

}  // namespace
}  // namespace mcpp
