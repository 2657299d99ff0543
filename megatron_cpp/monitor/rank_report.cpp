#include "megatron_cpp/monitor/rank_report.h"

#include <algorithm>

#include "base/number_text.h"
#include "base/strings.h"
#include "megatron_cpp/logging/clock_offset.h"
#include "tensor/transfer.h"

namespace mcpp {

RankStats mean_of(const std::vector<RankStats>& ranks) {
  RankStats mean;
  const auto count = static_cast<double>(ranks.size());
  for (const RankStats& rank : ranks) {
    mean.bubble += rank.bubble / count;
    mean.exposed_communication += rank.exposed_communication / count;
    mean.compute_ms += rank.compute_ms / count;
    mean.peak_memory_bytes = std::max(mean.peak_memory_bytes, rank.peak_memory_bytes);
  }
  return mean;
}

std::vector<RankStats> gather_rank_stats(const RankStats& mine, Communicator& world, Device& device) {
  constexpr i64 kFirst = 4, kNumbers = kFirst + 3 * static_cast<i64>(kMemoryClasses);
  Tensor own = Tensor::empty({kNumbers}, DType::F64, device, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * world.size()}, DType::F64, device, MemoryClass::Other);
  std::vector<double> numbers{mine.peak_memory_bytes, mine.bubble, mine.exposed_communication, mine.compute_ms};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    numbers.insert(numbers.end(), {mine.peak_by_class[c], static_cast<double>(mine.away[c].in_host),
                                   static_cast<double>(mine.away[c].on_disk)});
  write_values(numbers, own);
  world.all_gather(own, all).wait();
  numbers = read_values<double>(all);
  std::vector<RankStats> ranks;
  for (auto next = numbers.begin(); next != numbers.end(); next += kNumbers) {
    RankStats& rank = ranks.emplace_back(RankStats{
        .peak_memory_bytes = next[0], .bubble = next[1], .exposed_communication = next[2], .compute_ms = next[3]});
    auto of_class = next + kFirst;
    for (std::size_t c = 0; c < kMemoryClasses; ++c, of_class += 3) {
      rank.peak_by_class[c] = of_class[0];
      rank.away[c] = {.in_host = static_cast<i64>(of_class[1]), .on_disk = static_cast<i64>(of_class[2])};
    }
  }
  return ranks;
}

std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology) {
  const auto percent = [](double share) { return pad_left(fixed(100 * share, 1) + "%", 8); };
  std::string text = "  rank    tp    cp    pp    dp   peak memory  compute (ms)  bubble  exposed communication\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const AxisValues at = topology.dense().coordinates(static_cast<int>(r));
    const auto number = [](int n) { return pad_left(std::to_string(n), 6); };
    text += str(number(static_cast<int>(r)), number(at.tp), number(at.cp), number(at.pp), number(at.dp),
                pad_left(human_bytes(ranks[r].peak_memory_bytes), 14), pad_left(fixed(ranks[r].compute_ms, 1), 14),
                percent(ranks[r].bubble), pad_left(fixed(100 * ranks[r].exposed_communication, 1) + "%", 23), "\n");
  }
  return text;
}

std::string memory_table(const std::vector<RankStats>& ranks) {
  std::vector<std::string> lines{"  rank   peak memory"};
  for (std::size_t r = 0; r < ranks.size(); ++r)
    lines.push_back(pad_left(std::to_string(r), 6) + pad_left(human_bytes(ranks[r].peak_memory_bytes), 14));
  const auto is_used = [&](auto bytes_of) {
    return std::ranges::any_of(ranks, [&](const RankStats& rank) { return bytes_of(rank) > 0; });
  };
  const auto add_column = [&](const std::string& name, auto bytes_of) {
    const std::size_t width = std::max<std::size_t>(name.size(), 10) + 2;
    lines[0] += pad_left(name, width);
    for (std::size_t r = 0; r < ranks.size(); ++r) lines[1 + r] += pad_left(human_bytes(bytes_of(ranks[r])), width);
  };
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    const auto here = [c](const RankStats& rank) { return rank.peak_by_class[c]; };
    const auto in_host = [c](const RankStats& rank) { return static_cast<double>(rank.away[c].in_host); };
    const auto on_disk = [c](const RankStats& rank) { return static_cast<double>(rank.away[c].on_disk); };
    if (!is_used(here) && !is_used(in_host) && !is_used(on_disk)) continue;
    add_column(std::string(name_of(static_cast<MemoryClass>(c))), here);
    if (is_used(in_host)) add_column("in host", in_host);
    if (is_used(on_disk)) add_column("on disk", on_disk);
  }
  return join(lines, "\n") + "\n";
}

RankSeconds spent_by_rank(const TrainingState& state, const ParallelState& parallel) {
  RankSeconds spent{.clock = steady_seconds(),
                    .pipeline = state.pipeline_waiting_seconds(),
                    .communication = state.agreement_seconds()};
  for (const auto& [name, meter] : parallel.meters) {
    if (!ParallelState::is_pipeline(name)) spent.communication += meter->exposed_seconds;
  }
  return spent;
}

}  // namespace mcpp
