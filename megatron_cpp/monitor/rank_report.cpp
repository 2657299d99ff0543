#include "megatron_cpp/monitor/rank_report.h"

#include <algorithm>

#include "base/number_format.h"
#include "base/strings.h"
#include "megatron_cpp/logging/trace_file.h"
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

std::vector<RankStats> gather_rank_stats(const RankStats& local, Communicator& world, Device& device) {
  constexpr i64 kFirst = 4, kNumValues = kFirst + 3 * static_cast<i64>(kMemoryClasses);
  Tensor local_values = Tensor::empty({kNumValues}, DType::F64, device, MemoryClass::Other);
  Tensor all = Tensor::empty({kNumValues * world.size()}, DType::F64, device, MemoryClass::Other);
  std::vector<double> values{local.peak_memory_bytes, local.bubble, local.exposed_communication, local.compute_ms};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    values.insert(values.end(), {local.peak_by_class[c], static_cast<double>(local.offloaded[c].in_host),
                                 static_cast<double>(local.offloaded[c].on_disk)});
  write_values(values, local_values);
  world.all_gather(local_values, all).wait();
  values = read_values<double>(all);
  std::vector<RankStats> ranks;
  for (auto next = values.begin(); next != values.end(); next += kNumValues) {
    RankStats& rank = ranks.emplace_back(RankStats{
        .peak_memory_bytes = next[0], .bubble = next[1], .exposed_communication = next[2], .compute_ms = next[3]});
    auto of_class = next + kFirst;
    for (std::size_t c = 0; c < kMemoryClasses; ++c, of_class += 3) {
      rank.peak_by_class[c] = of_class[0];
      rank.offloaded[c] = {.in_host = static_cast<i64>(of_class[1]), .on_disk = static_cast<i64>(of_class[2])};
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

std::vector<MemoryColumn> memory_columns(const std::vector<RankStats>& ranks) {
  using MemoryLocation = MemoryColumn::MemoryLocation;
  std::vector<MemoryColumn> columns;
  for (std::size_t c = 0; c < kMemoryClasses; ++c) {
    const auto of = static_cast<MemoryClass>(c);
    MemoryColumn on_device{of, MemoryLocation::OnDevice, {}}, in_host{of, MemoryLocation::InHost, {}},
        on_disk{of, MemoryLocation::OnDisk, {}};
    for (const RankStats& rank : ranks) {
      on_device.bytes.push_back(rank.peak_by_class[c]);
      in_host.bytes.push_back(static_cast<double>(rank.offloaded[c].in_host));
      on_disk.bytes.push_back(static_cast<double>(rank.offloaded[c].on_disk));
    }
    const auto is_used = [](const MemoryColumn& column) { return std::ranges::max(column.bytes) > 0; };
    if (is_used(on_device) || is_used(in_host) || is_used(on_disk)) columns.push_back(on_device);
    if (is_used(in_host)) columns.push_back(in_host);
    if (is_used(on_disk)) columns.push_back(on_disk);
  }
  return columns;
}

std::string memory_table(const std::vector<RankStats>& ranks) {
  std::vector<std::string> lines{"  rank   peak memory"};
  for (std::size_t r = 0; r < ranks.size(); ++r)
    lines.push_back(pad_left(std::to_string(r), 6) + pad_left(human_bytes(ranks[r].peak_memory_bytes), 14));
  for (const MemoryColumn& column : memory_columns(ranks)) {
    constexpr std::array kLocationNames{"", "in host", "on disk"};
    const bool is_on_device = column.location == MemoryColumn::MemoryLocation::OnDevice;
    const std::string name(is_on_device ? name_of(column.of)
                                        : kLocationNames[static_cast<std::size_t>(column.location)]);
    const std::size_t width = std::max<std::size_t>(name.size(), 10) + 2;
    lines[0] += pad_left(name, width);
    for (std::size_t r = 0; r < ranks.size(); ++r) lines[1 + r] += pad_left(human_bytes(column.bytes[r]), width);
  }
  return join(lines, "\n") + "\n";
}

RankTimings rank_timings(const TrainingState& state, const ParallelState& parallel) {
  RankTimings spent{.clock = steady_seconds(),
                    .pipeline = state.pipeline_waiting_seconds(),
                    .communication = state.agreement_seconds()};
  for (const auto& [name, meter] : parallel.meters) {
    if (!ParallelState::is_pipeline(name)) spent.communication += meter->exposed_seconds;
  }
  return spent;
}

}  // namespace mcpp
