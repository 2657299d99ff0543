// Command megatron_cpp bench object_store: compares reads of an object with reads of a local file.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/io/scratch_file.h"
#include "base/machine.h"
#include "base/number_format.h"
#include "base/object_store/node_cache.h"
#include "base/object_store/s3_transfer.h"
#include "base/system_error.h"
#include "checkpoint/format/block_io.h"
#include "megatron_cpp/bench/bench_commands.h"

namespace mcpp {
namespace {

struct BenchObjectStoreOptions {
  std::string object;
  std::string file;
  i64 rounds = 5;
  bool json = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("object", self.object, "object to read, s3://bucket/key");
    visit("file", self.file, "file of the same size on the disk to compare with");
    visit("rounds", self.rounds, "repetitions of every measurement", between(1, 1e6));
    visit("json", self.json, "print one JSON object per round instead of a table");
  }
};

/// Seconds to read all bytes once, front to back.
struct ReadTimes {
  double file = 0;    ///< from the disk, bypassing the page cache if supported
  double object = 0;  ///< from the store to memory
  double copy = 0;    ///< from the store to a durable copy in the cache of the node
};

double time_of(const std::function<void()>& f) {
  const double start = steady_seconds();
  f();
  return steady_seconds() - start;
}

void read_file(const Path& path) {
  constexpr i64 kBytes = i64{8} << 20;
  const InputFile file(path);
  const AlignedBytes memory(kBytes);
  const int direct = open_direct(path, O_RDONLY);
  for (i64 offset = 0; offset < file.size(); offset += kBytes) {
    const auto part = memory.bytes().first(static_cast<std::size_t>(std::min(kBytes, file.size() - offset)));
    if (direct < 0 || ::pread(direct, memory.bytes().data(), kBytes, offset) != std::ssize(part))
      file.read(offset, part);
  }
  if (direct >= 0) ::close(direct);
}

/// Removes the file's pages from the page cache.
void evict(const Path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  MCPP_CHECK_SYSTEM(file >= 0, "cannot open ", path.string());
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

ReadTimes measure(const S3Path& path, const S3Object& object, const Path& file, S3Transfer& transfer) {
  ReadTimes times;
  evict(file);
  times.file = time_of([&] { read_file(file); });
  times.object =
      time_of([&] { transfer.download(path, object, 0, object.bytes, [](i64, std::span<const std::byte>) {}); });
  NodeCache cache(read_node_cache_settings());
  Path copy;
  times.copy = time_of([&] { copy = cache.fetch(path, object, transfer); });
  std::filesystem::remove(copy);
  return times;
}

std::string table(const ReadTimes& times, double bytes) {
  const auto line = [&](const char* name, double seconds) {
    return str(pad_right(name, 32), pad_left(fixed(seconds, 3), 10), pad_left(fixed(bytes / seconds / 1e6, 0), 8),
               pad_left(fixed(times.file / seconds, 2), 8), "\n");
  };
  return str(pad_right("", 32), pad_left("seconds", 10), pad_left("MB/s", 8), pad_left("ratio", 8), "\n",
             line("read of the file", times.file), line("read of the object", times.object),
             line("copy of the object to the cache", times.copy));
}

std::string to_json_line(const ReadTimes& times, double bytes) {
  return nlohmann::ordered_json{
      {"bytes", bytes}, {"file_s", times.file}, {"object_s", times.object}, {"copy_s", times.copy}}
      .dump();
}

}  // namespace

ExitCode bench_object_store_command(Arguments args, Log& log, const World& world) {
  const Usage usage{.command = "megatron_cpp bench object_store",
                    .summary = "Times reads of an object in alternation with reads of a local file of the same size.",
                    .positional = {"object", "file"},
                    .required = {"object", "file"}};
  BenchObjectStoreOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  check_input(world.ranks.size() == 1, "bench object_store runs in one process; start it without mpirun");
  const S3Path path = S3Path::parse(options.object);
  S3Transfer transfer(read_s3_settings());
  const S3Object object = transfer.head(path);
  const i64 file_bytes = InputFile(options.file).size();
  check_input(object.bytes == file_bytes, options.object, " has ", object.bytes, " bytes and ", options.file, " has ",
              file_bytes, "; they must have the same size");
  for (i64 round = 0; round < options.rounds; ++round) {
    const ReadTimes times = measure(path, object, options.file, transfer);
    const auto bytes = static_cast<double>(object.bytes);
    log.info(options.json ? to_json_line(times, bytes) : table(times, bytes));
  }
  return ExitCode::Done;
}

}  // namespace mcpp
