// Reader of Trace Event Format files that checks the documented fields.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"

namespace mcpp::test {

/// Returns only the complete events ("ph": "X"), and checks all others.
inline std::vector<nlohmann::json> complete_events(const nlohmann::json& file) {
  EXPECT_TRUE(file.is_object());
  EXPECT_TRUE(file["displayTimeUnit"] == "ms" || file["displayTimeUnit"] == "ns");
  std::vector<nlohmann::json> events;
  for (const nlohmann::json& event : file.at("traceEvents")) {
    EXPECT_TRUE(event.at("name").is_string() && event.at("pid").is_number_integer() &&
                event.at("tid").is_number_integer() && event.at("args").is_object())
        << event;
    if (event.at("ph") == "M") {
      static const std::map<std::string, std::string> kArguments{
          {"process_name", "name"}, {"process_sort_index", "sort_index"}, {"thread_name", "name"}};
      EXPECT_TRUE(event["args"].contains(kArguments.at(event["name"]))) << event;
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_TRUE(event.at("cat").is_string() && event.at("ts").is_number() && event.at("dur").is_number()) << event;
    EXPECT_GE(event["dur"], 0.0) << event;
    events.push_back(event);
  }
  return events;
}

/// Checks that the events of a thread nest or follow one another, as viewers require. Times are rounded to nanoseconds.
inline void expect_nested(const std::vector<nlohmann::json>& events) {
  constexpr double kRounding = 0.002;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> tracks;
  for (const nlohmann::json& event : events) {
    const double begin = event["ts"], duration = event["dur"];
    tracks[{event["pid"], event["tid"]}].emplace_back(begin, begin + duration);
  }
  for (auto& [track, ranges] : tracks) {
    std::ranges::sort(ranges, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> ends;
    for (const auto& [begin, end] : ranges) {
      while (!ends.empty() && ends.back() <= begin + kRounding) ends.pop_back();
      EXPECT_TRUE(ends.empty() || end <= ends.back() + kRounding) << begin << " " << end << " " << ends.back();
      ends.push_back(end);
    }
  }
}

/// Returns the seconds of the events of a category on a rank.
inline double seconds_of(const std::vector<nlohmann::json>& events, int rank, const std::string& category) {
  double micros = 0;
  for (const nlohmann::json& event : events)
    if (event["pid"] == rank && event["cat"] == category) micros += event["dur"].get<double>();
  return micros / 1e6;
}

inline nlohmann::json read_trace(const Path& path) {
  return nlohmann::json::parse(read_text_file(path));
}

}  // namespace mcpp::test
