#include "megatron_cpp/train/rank_report.h"

#include <algorithm>

#include "base/number_text.h"
#include "base/strings.h"
#include "tensor/transfer.h"

namespace mcpp {

std::vector<RankStats> gather_rank_stats(const RankStats& mine, Communicator& world, Device& device) {
  constexpr i64 kNumbers = 3 + static_cast<i64>(kMemoryClasses);
  Tensor own = Tensor::empty({kNumbers}, DType::F64, device, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * world.size()}, DType::F64, device, MemoryClass::Other);
  std::vector<double> numbers{mine.peak_memory_bytes, mine.bubble, mine.exposed_communication};
  numbers.insert(numbers.end(), mine.peak_by_class.begin(), mine.peak_by_class.end());
  write_values(numbers, own);
  world.all_gather(own, all).wait();
  numbers = read_values<double>(all);
  std::vector<RankStats> ranks;
  for (auto next = numbers.begin(); next != numbers.end(); next += kNumbers) {
    RankStats& rank = ranks.emplace_back(
        RankStats{.peak_memory_bytes = next[0], .bubble = next[1], .exposed_communication = next[2]});
    std::copy(next + 3, next + kNumbers, rank.peak_by_class.begin());
  }
  return ranks;
}

std::string rank_table(const std::vector<RankStats>& ranks, const Topology& topology) {
  const auto percent = [](double share) { return pad_left(fixed(100 * share, 1) + "%", 8); };
  std::string text = "  rank    tp    cp    pp    dp   peak memory  bubble  exposed communication\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const AxisValues at = topology.dense().coordinates(static_cast<int>(r));
    const auto number = [](int n) { return pad_left(std::to_string(n), 6); };
    text += str(number(static_cast<int>(r)), number(at.tp), number(at.cp), number(at.pp), number(at.dp),
                pad_left(human_bytes(ranks[r].peak_memory_bytes), 14), percent(ranks[r].bubble),
                pad_left(fixed(100 * ranks[r].exposed_communication, 1) + "%", 23), "\n");
  }
  return text;
}

double exposed_seconds(const ParallelState& parallel) {
  double seconds = 0;
  for (const auto& [name, meter] : parallel.meters) {
    if (name != "pp" && name != "pp_backward") seconds += meter->exposed_seconds;
  }
  return seconds;
}

}  // namespace mcpp
