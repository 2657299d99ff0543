// Reader of TensorBoard event files, independent of the writer except for the framing.
#pragma once
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer/proto_reader.h"
#include "megatron_cpp/monitor/tensorboard_sink.h"

namespace mcpp::test {

struct Events {
  std::map<std::string, std::vector<std::pair<i64, float>>> scalars;  ///< step and value by tag, in file order
  std::map<std::string, std::vector<std::pair<i64, std::string>>> texts,
      histograms;  ///< encoded messages of the histograms
  std::vector<std::string> versions;
  std::size_t unread = 0;  ///< bytes after the last complete record

  std::vector<i64> steps(const std::string& tag) const {
    std::vector<i64> found;
    if (const auto curve = scalars.find(tag); curve != scalars.end())
      for (const auto& [step, value] : curve->second) found.push_back(step);
    return found;
  }
};

/// Returns the last value of field `number`.
inline ProtoField field_of(std::string_view message, u64 number) {
  ProtoField field, found;
  const std::string source = "test";
  for (ProtoReader reader(message, source); reader.next(field);)
    if (field.number == number) found = field;
  return found;
}

inline void add_value(std::string_view value, i64 step, Events& events) {
  const std::string tag(field_of(value, 1).bytes);
  if (const std::string_view simple = field_of(value, 2).bytes; !simple.empty()) {
    float number = 0;
    std::memcpy(&number, simple.data(), sizeof(number));
    events.scalars[tag].emplace_back(step, number);
  } else if (const std::string_view histogram = field_of(value, 5).bytes; !histogram.empty()) {
    events.histograms[tag].emplace_back(step, histogram);
  } else {
    events.texts[tag].emplace_back(step, field_of(field_of(value, 8).bytes, 8).bytes);
  }
}

inline void add_file(const Path& path, Events& events) {
  const std::string bytes = read_text_file(path), source = "test";
  std::string_view rest = bytes, record;
  while (next_record(rest, record)) {
    if (const std::string_view version = field_of(record, 3).bytes; !version.empty())
      events.versions.emplace_back(version);
    const i64 step = static_cast<i64>(field_of(record, 2).integer);
    ProtoField field;
    const std::string_view summary = field_of(record, 5).bytes;
    for (ProtoReader values(summary, source); values.next(field);) add_value(field.bytes, step, events);
  }
  events.unread += rest.size();
}

/// Returns the events of all files that TensorBoard would read, in its order.
inline Events read_events(const Path& folder) {
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  std::ranges::sort(files);
  Events events;
  for (const Path& file : files) add_file(file, events);
  return events;
}

}  // namespace mcpp::test
