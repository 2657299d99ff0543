// A disk that fails, for a program that knows nothing of it: loaded before its libraries (LD_PRELOAD). Reads and writes
// of files in the folder FAULTY_DISK_FOLDER are counted in the file FAULTY_DISK_COUNTS, two u64; from number
// FAULTY_DISK_AFTER on they fail as FAULTY_DISK says:
//   full        nothing can be written
//   read_error  nothing can be read
//   bit_flip    what is read has another bit
//   slow        each takes 2 ms more, from the first on
// With FAULTY_DISK_RANK only on that rank. There is no io_uring, so that transfers are calls that can be caught.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

namespace {

std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

class FaultyDisk {
 public:
  enum Direction { Read, Write };

  FaultyDisk() : folder_(setting("FAULTY_DISK_FOLDER")), fault_(setting("FAULTY_DISK")) {
    const std::string_view wanted = setting("FAULTY_DISK_RANK"), rank = setting("OMPI_COMM_WORLD_RANK");
    const int file = wanted.empty() || wanted == rank ? ::open(std::getenv("FAULTY_DISK_COUNTS"), O_RDWR) : -1;
    if (file < 0) return;
    void* memory = ::mmap(nullptr, 2 * sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory != MAP_FAILED) counts_ = static_cast<std::uint64_t*>(memory);
    if (const char* after = std::getenv("FAULTY_DISK_AFTER")) after_ = std::strtoull(after, nullptr, 10);
  }

  /// Whether a transfer of this file, which this counts, meets the fault.
  bool strikes(int file, Direction direction) {
    if (!counts_ || !is_there(file)) return false;
    const std::uint64_t number = __atomic_fetch_add(&counts_[direction], 1, __ATOMIC_SEQ_CST);
    if (fault_ == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return number >= after_;
  }
  bool is_full() const { return fault_ == "full"; }
  bool cannot_read() const { return fault_ == "read_error"; }
  bool flips() const { return fault_ == "bit_flip"; }

 private:
  bool is_there(int file) const {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    return length > 0 && std::string_view(path.data(), static_cast<std::size_t>(length)).starts_with(folder_ + "/");
  }

  std::string folder_, fault_;
  std::uint64_t after_ = UINT64_MAX;
  std::uint64_t* counts_ = nullptr;
};

FaultyDisk& disk() {
  static FaultyDisk* const only = new FaultyDisk;  // for as long as anything may be transferred
  return *only;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pread64(int file, void* data, size_t bytes, off64_t offset) {
  static const auto original = next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  const bool strikes = disk().strikes(file, FaultyDisk::Read);
  if (strikes && disk().cannot_read()) {
    errno = EIO;
    return -1;
  }
  const ssize_t done = original(file, data, bytes, offset);
  if (strikes && disk().flips() && done > 0) static_cast<char*>(data)[done / 2] ^= 4;
  return done;
}

ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  return pread64(file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) {
  static const auto original = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  if (disk().strikes(file, FaultyDisk::Write) && disk().is_full()) {
    errno = ENOSPC;
    return -1;
  }
  return original(file, data, bytes, offset);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  return pwrite64(file, data, bytes, offset);
}

int io_uring_queue_init(unsigned, void*, unsigned) {
  return -ENOSYS;
}
}
