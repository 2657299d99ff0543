#include "megatron_cpp/train/rank_report.h"

#include "base/number_text.h"
#include "base/strings.h"
#include "tensor/transfer.h"

namespace mcpp {

std::vector<RankStats> gather_rank_stats(const RankStats& mine, Communicator& world, Device& device) {
  constexpr i64 kNumbers = 3;
  Tensor own = Tensor::empty({kNumbers}, DType::F64, device, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumbers * world.size()}, DType::F64, device, MemoryClass::Other);
  write_values(std::vector<double>{mine.peak_memory_bytes, mine.bubble, mine.exposed_communication}, own);
  world.all_gather(own, all).wait();
  std::vector<RankStats> ranks;
  const std::vector<double> numbers = read_values<double>(all);
  for (std::size_t r = 0; r < numbers.size(); r += kNumbers)
    ranks.push_back(
        {.peak_memory_bytes = numbers[r], .bubble = numbers[r + 1], .exposed_communication = numbers[r + 2]});
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
