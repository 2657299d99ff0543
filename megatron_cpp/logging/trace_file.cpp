#include "megatron_cpp/logging/trace_file.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr int kRounds = 16;  // the fastest is used

/// Pair of values that is sent back and forth.
class ClockMessage {
 public:
  double& operator[](int i) { return tensor_.data<double>()[i]; }
  void send_to(Communicator& world, int rank) { world.send(tensor_, rank).wait(); }
  void receive_from(Communicator& world, int rank) { world.recv(tensor_, rank).wait(); }
  void send_to_all(Communicator& world) { world.broadcast(tensor_, 0).wait(); }

 private:
  CpuDevice memory_;
  Tensor tensor_ = Tensor::zeros({2}, DType::F64, memory_, MemoryClass::Other);
};

void measure_rank(Communicator& world, int rank, ClockMessage& message) {
  double min_round_trip = std::numeric_limits<double>::infinity(), offset = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double sent_at = steady_seconds();
    message.send_to(world, rank);
    message.receive_from(world, rank);
    const double received_at = steady_seconds();
    if (received_at - sent_at >= min_round_trip) continue;
    min_round_trip = received_at - sent_at;
    offset = (sent_at + received_at) / 2 - message[0];
  }
  message[0] = offset;
  message[1] = min_round_trip / 2;
  message.send_to(world, rank);
}

void reply(Communicator& world, ClockMessage& message) {
  for (int round = 0; round < kRounds; ++round) {
    message.receive_from(world, 0);
    message[0] = steady_seconds();
    message.send_to(world, 0);
  }
  message.receive_from(world, 0);
}

}  // namespace

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ClockOffset measure_clock_offset(Communicator& world) {
  ClockMessage message;
  ClockOffset found;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) measure_rank(world, rank, message);
  } else {
    reply(world, message);
    found.uncertainty = message[1];
    // Processes of one host share a clock; offsets this small do not happen by chance between hosts.
    found.seconds = std::abs(message[0]) <= message[1] ? 0 : message[0];
  }
  message[0] = steady_seconds();
  message.send_to_all(world);
  found.reference = message[0];
  found.at = steady_seconds();
  return found;
}

double to_rank0_clock(double moment, const ClockOffset& before, const ClockOffset& after) {
  const double drift = after.seconds - before.seconds, apart = after.at - before.at;
  if (std::abs(drift) <= before.uncertainty + after.uncertainty || apart <= 0)
    return moment + (after.uncertainty < before.uncertainty ? after : before).seconds;
  return moment + before.seconds + drift * (moment - before.at) / apart;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCategories[] = {"work", "communication", "message", "bubble"};

double steady_seconds_of(ProfiledRange::Clock::time_point moment) {
  return std::chrono::duration<double>(moment.time_since_epoch()).count();
}

std::string arguments(const RangeFacts& facts) {
  Json object = Json::object();
  if (facts.iteration >= 0) object["iteration"] = facts.iteration;
  if (facts.microbatch >= 0) object["microbatch"] = facts.microbatch;
  if (facts.chunk >= 0) object["chunk"] = facts.chunk;
  if (facts.bytes >= 0) object["bytes"] = facts.bytes;
  if (!facts.group.empty()) object["group"] = facts.group;
  return object.dump();
}

std::string event_of(const ProfiledRange& range, const RankTrace& trace, int rank) {
  constexpr int kNanoseconds = 3;
  const double begin = to_rank0_clock(steady_seconds_of(range.begin), trace.before, trace.after),
               end = to_rank0_clock(steady_seconds_of(range.end), trace.before, trace.after);
  return str(R"({"name":)", Json(range.name).dump(), R"(,"cat":")", kCategories[static_cast<std::size_t>(range.kind)],
             R"(","ph":"X","ts":)", fixed(1e6 * (begin - trace.before.reference), kNanoseconds), R"(,"dur":)",
             fixed(1e6 * (end - begin), kNanoseconds), R"(,"pid":)", rank, R"(,"tid":)", range.is_on_device ? 1 : 0,
             R"(,"args":)", arguments(range.facts), "}");
}

std::string metadata_event(const char* what, int rank, int thread, const Json& arguments) {
  return Json{{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", thread}, {"args", arguments}}.dump();
}

std::string figures_of(const RankTrace& trace, int rank) {
  Json object{{"rank", rank}, {"name", trace.name}};
  for (const auto& [name, value] : trace.totals) object[name] = value;
  if (!trace.modules.empty()) object["memory_bytes_by_module"] = trace.modules;
  object["ranges_left_out"] = trace.trace.dropped_ranges;
  object["clock_offset_seconds"] = {trace.before.seconds, trace.after.seconds};
  object["clock_uncertainty_seconds"] = {trace.before.uncertainty, trace.after.uncertainty};
  return object.dump();
}

// Sends a text as its length, followed by 32-bit integers.
void send_text(const std::string& text, Communicator& world) {
  CpuDevice host;
  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  *length.data<i64>() = static_cast<i64>(text.size());
  world.send(length, 0).wait();
  Tensor words = Tensor::zeros({static_cast<i64>(text.size()) / 4 + 1}, DType::I32, host, MemoryClass::Other);
  std::memcpy(words.raw(), text.data(), text.size());
  world.send(words, 0).wait();
}

std::string receive_text(int rank, Communicator& world) {
  CpuDevice host;
  Tensor length = Tensor::empty({1}, DType::I64, host, MemoryClass::Other);
  world.recv(length, rank).wait();
  const i64 size = *length.data<i64>();
  Tensor words = Tensor::empty({size / 4 + 1}, DType::I32, host, MemoryClass::Other);
  world.recv(words, rank).wait();
  return {static_cast<const char*>(words.raw()), static_cast<std::size_t>(size)};
}

/// Writes until the first failure; later text is discarded because the ranks keep sending.
class Writer {
 public:
  explicit Writer(const Path& path) {
    attempt([&] { file_.emplace(path); });
  }
  void write(std::string_view text) {
    attempt([&] { file_->write(text); });
  }
  std::string finish() {
    attempt([&] { file_->commit(); });
    return problem_;
  }

 private:
  template <class F>
  void attempt(F f) {
    if (!problem_.empty()) return;
    try {
      f();
    } catch (const Error& error) {
      problem_ = error.what();
    }
  }
  std::optional<AtomicFile> file_;
  std::string problem_;
};

}  // namespace

std::string trace_events(const RankTrace& trace, int rank) {
  std::string text = metadata_event("process_name", rank, 0, {{"name", trace.name}});
  const auto add = [&](const std::string& event) { text.append(",\n").append(event); };
  add(metadata_event("process_sort_index", rank, 0, {{"sort_index", rank}}));
  add(metadata_event("thread_name", rank, 0, {{"name", "host"}}));
  const auto& ranges = trace.trace.ranges;
  if (!ranges.empty() && ranges.back().is_on_device) add(metadata_event("thread_name", rank, 1, {{"name", "device"}}));
  for (const ProfiledRange& range : ranges) add(event_of(range, trace, rank));
  return text;
}

std::string write_trace_file(const Path& path, const RankTrace& local, const std::string& facts, Communicator& world) {
  const std::string events = trace_events(local, world.rank()), totals = figures_of(local, world.rank());
  if (world.rank() != 0) {
    send_text(totals, world);
    send_text(events, world);
    return "";
  }
  Writer file(path);
  file.write("{\"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n" + events);
  std::string all_figures = totals;
  for (int rank = 1; rank < world.size(); ++rank) {
    all_figures.append(",\n").append(receive_text(rank, world));
    file.write(",\n" + receive_text(rank, world));
  }
  Json other = Json::parse(facts);
  other["ranks"] = Json::parse(str("[", all_figures, "]"));
  file.write(str("\n],\n\"otherData\": ", other.dump(), "}\n"));
  return file.finish();
}

}  // namespace mcpp
