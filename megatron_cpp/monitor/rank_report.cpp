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
  constexpr i64 kFirst = 6, kNumbers = kFirst + static_cast<i64>(kMemoryClasses);
  Tensor own = Tensor::empty({kNumbers}, DType::F64, device, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * world.size()}, DType::F64, device, MemoryClass::Other);
  std::vector<double> numbers{mine.peak_memory_bytes, mine.bubble,        mine.exposed_communication,
                              mine.compute_ms,        mine.in_host_bytes, mine.on_disk_bytes};
  numbers.insert(numbers.end(), mine.peak_by_class.begin(), mine.peak_by_class.end());
  write_values(numbers, own);
  world.all_gather(own, all).wait();
  numbers = read_values<double>(all);
  std::vector<RankStats> ranks;
  for (auto next = numbers.begin(); next != numbers.end(); next += kNumbers) {
    RankStats& rank = ranks.emplace_back(RankStats{.peak_memory_bytes = next[0],
                                                   .bubble = next[1],
                                                   .exposed_communication = next[2],
                                                   .compute_ms = next[3],
                                                   .in_host_bytes = next[4],
                                                   .on_disk_bytes = next[5]});
    std::copy(next + kFirst, next + kNumbers, rank.peak_by_class.begin());
  }
  return ranks;
}

std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology) {
  const auto percent = [](double share) { return pad_left(fixed(100 * share, 1) + "%", 8); };
  const bool has_host = std::ranges::any_of(ranks, [](const RankStats& rank) { return rank.in_host_bytes > 0; });
  const bool has_disk = std::ranges::any_of(ranks, [](const RankStats& rank) { return rank.on_disk_bytes > 0; });
  const auto bytes = [](double count) { return pad_left(human_bytes(count), 14); };
  std::string text = str("  rank    tp    cp    pp    dp   peak memory", has_host ? "       in host" : "",
                         has_disk ? "       on disk" : "", "  compute (ms)  bubble  exposed communication\n");
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const AxisValues at = topology.dense().coordinates(static_cast<int>(r));
    const auto number = [](int n) { return pad_left(std::to_string(n), 6); };
    text += str(number(static_cast<int>(r)), number(at.tp), number(at.cp), number(at.pp), number(at.dp),
                bytes(ranks[r].peak_memory_bytes), has_host ? bytes(ranks[r].in_host_bytes) : "",
                has_disk ? bytes(ranks[r].on_disk_bytes) : "", pad_left(fixed(ranks[r].compute_ms, 1), 14),
                percent(ranks[r].bubble), pad_left(fixed(100 * ranks[r].exposed_communication, 1) + "%", 23), "\n");
  }
  return text;
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
