#include "megatron_cpp/bench/calibrate_disk.h"

#include <cstring>

#include "base/io/scratch_file.h"
#include "base/io/transfer_queue.h"

namespace mcpp {
namespace {

void transfer(TransferQueue& queue, const ScratchFile& file, FileTransfer::Kind kind, std::span<std::byte> memory) {
  const int error = queue.wait(queue.start({.kind = kind,
                                            .file = file.descriptor(),
                                            .offset = 0,
                                            .data = memory.data(),
                                            .bytes = static_cast<i64>(memory.size())}));
  if (error != 0)
    file.throw_transfer_error(kind == FileTransfer::Kind::Read ? "read" : "written", error, "a measurement");
}

}  // namespace

double disk_bandwidth(CalibrationClock& clock, const Path& folder, i64 bytes, std::string_view key) {
  const ScratchFile file(folder, aligned_bytes(bytes), key);
  const AlignedBytes memory(aligned_bytes(bytes));
  std::memset(memory.bytes().data(), 0x5a, memory.bytes().size());
  const std::unique_ptr<TransferQueue> queue = make_transfer_queue();
  const double seconds = clock.collective_seconds([&] {
    transfer(*queue, file, FileTransfer::Kind::Write, memory.bytes());
    transfer(*queue, file, FileTransfer::Kind::Read, memory.bytes());
  });
  return 2 * static_cast<double>(memory.bytes().size()) / seconds;
}

}  // namespace mcpp
