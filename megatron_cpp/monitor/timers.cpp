#include "megatron_cpp/monitor/timers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number_format.h"
#include "base/strings.h"
#include "comm/object_collectives.h"

namespace mcpp {
namespace {

constexpr std::size_t kNameWidth = 48;

std::string dotted(const std::string& name) {
  const std::string begin = name + " ";
  return begin + std::string(begin.size() < kNameWidth ? kNameWidth - begin.size() : 0, '.') + ": ";
}

bool is_shorter(const TimerStats::RankTime& a, const TimerStats::RankTime& b) {
  return a.ms < b.ms;
}

}  // namespace

double TimerStats::min() const {
  return std::ranges::min_element(ranks, is_shorter)->ms;
}

double TimerStats::max() const {
  return std::ranges::max_element(ranks, is_shorter)->ms;
}

std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world) {
  const std::vector<std::string> texts = all_gather_strings(nlohmann::json(seconds).dump(), world);
  std::map<std::string, TimerStats> by_name;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const nlohmann::json of_rank = nlohmann::json::parse(texts[rank]);
    for (const auto& [name, value] : of_rank.items()) {
      by_name[name].name = name;
      by_name[name].ranks.push_back({.rank = static_cast<int>(rank), .ms = 1e3 * value.get<double>() / iterations});
    }
  }
  std::vector<TimerStats> timers;
  for (auto& [name, timer] : by_name) timers.push_back(std::move(timer));
  return timers;
}

std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option) {
  if (timers.empty()) return "";
  std::string text = option == TimingLogOption::Minmax ? "(min, max) time across ranks (ms):"
                     : option == TimingLogOption::Max  ? "max time across ranks (ms):"
                                                       : "times across ranks (ms):";
  for (const TimerStats& timer : timers) {
    if (option == TimingLogOption::All) {
      text += str("\n  ", timer.name, ":");
      for (const auto& [rank, ms] : timer.ranks)
        text += str("\n     rank ", pad_left(str(rank), 2), ": ", fixed(ms, 2));
    } else if (option == TimingLogOption::Minmax) {
      text += str("\n    ", dotted(timer.name), "(", fixed(timer.min(), 2), ", ", fixed(timer.max(), 2), ")");
    } else {
      text += str("\n    ", dotted(timer.name), fixed(timer.max(), 2));
    }
  }
  return text;
}

}  // namespace mcpp
