// Simulates a faulty disk for an unmodified program, when loaded before its libraries (LD_PRELOAD). Reads and writes of
// files in the folder FAULTY_DISK_FOLDER are counted in the file FAULTY_DISK_COUNTS, as three u64 values, the third of
// which counts how often a file in the folder grew. From operation FAULTY_DISK_AFTER on they fail according to
// FAULTY_DISK:
//   full        all writes fail
//   read_error  all reads fail
//   bit_flip    a bit of the data read is flipped
//   no_growth   no file grows beyond its initial size
//   signal      the process receives FAULTY_DISK_SIGNAL once, at the write with that number
// These faults apply from the first operation on:
//   slow         each operation takes 2 ms longer
//   short        each operation transfers half of the requested bytes, and a ring accepts one entry at a time
//   interrupted  a harmless signal arrives every millisecond and interrupts these operations with EINTR
// FAULTY_DISK_QUEUE selects the transfer queue. By default io_uring is missing, so that all transfers are interceptable
// calls:
//   ring      io_uring exists, and its entries meet all faults except bit_flip
//   seccomp   a filter rejects io_uring, as in containers
// FAULTY_DISK_NAMED: the file system does not support unnamed files. FAULTY_DISK_UNRESERVED: it cannot reserve space.
// FAULTY_DISK_FREE: number of free bytes. With FAULTY_DISK_RANK, faults apply only to that rank.
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace {

std::string_view setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

class FaultyDisk {
 public:
  enum Operation { Read, Write, Growth, kOperations };

  FaultyDisk() : folder_(setting("FAULTY_DISK_FOLDER")), fault_(setting("FAULTY_DISK")) {
    const std::string_view faulty_rank = setting("FAULTY_DISK_RANK"), rank = setting("OMPI_COMM_WORLD_RANK");
    const int file =
        faulty_rank.empty() || faulty_rank == rank ? ::open(std::getenv("FAULTY_DISK_COUNTS"), O_RDWR) : -1;
    if (file < 0) return;
    void* memory = ::mmap(nullptr, kOperations * sizeof(std::uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (memory != MAP_FAILED) counts_ = static_cast<std::uint64_t*>(memory);
    if (const char* after = std::getenv("FAULTY_DISK_AFTER")) after_ = std::strtoull(after, nullptr, 10);
  }

  /// Counts a transfer of this file, and returns true if it meets the fault.
  bool count_transfer(int file, Operation operation) {
    if (!counts_ || !is_in_folder(file)) return false;
    const std::uint64_t number = __atomic_fetch_add(&counts_[operation], 1, __ATOMIC_SEQ_CST);
    if (fault_ == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (fault_ == "signal" && operation == Write && number == after_) ::kill(::getpid(), signal());
    return number >= after_;
  }
  /// Returns how many of the requested bytes of a file to transfer. Partial blocks are not counted as transfers.
  std::size_t allowed(int file, std::size_t bytes) const {
    constexpr std::size_t kBlock = 4096;
    return transfers_partially() && bytes > kBlock && is_in_folder(file) ? bytes / 2 / kBlock * kBlock : bytes;
  }
  bool transfers_partially() const { return counts_ && fault_ == "short"; }
  bool is_full() const { return fault_ == "full"; }
  bool cannot_read() const { return fault_ == "read_error"; }
  bool flips() const { return fault_ == "bit_flip"; }
  bool cannot_grow() const { return fault_ == "no_growth"; }
  bool interrupts() const { return counts_ && fault_ == "interrupted"; }

 private:
  static int signal() { return std::atoi(std::getenv("FAULTY_DISK_SIGNAL")); }
  bool is_in_folder(int file) const {
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
  static FaultyDisk* const only = new FaultyDisk;  // must outlive every transfer
  return *only;
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

void refuse_io_uring() {
  std::array filter{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                    sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                    sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(126);
}

void change_alarm_mask(int how) {
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(how, &alarm, nullptr);
}

/// Scope in which signals interrupt the calling thread. They are blocked elsewhere, because code generated by oneDNN
/// keeps data below the stack pointer, where a signal frame would overwrite it (megatron_cpp/train/signals.h).
class InterruptibleScope {
 public:
  InterruptibleScope() {
    if (disk().interrupts()) change_alarm_mask(SIG_UNBLOCK);
  }
  ~InterruptibleScope() {
    const int error = errno;
    if (disk().interrupts()) change_alarm_mask(SIG_BLOCK);
    errno = error;
  }
  InterruptibleScope(const InterruptibleScope&) = delete;
  InterruptibleScope& operator=(const InterruptibleScope&) = delete;
};

void interrupt_every_millisecond() {
  change_alarm_mask(SIG_BLOCK);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval timer{.it_interval = {0, 1000}, .it_value = {0, 1000}};
  ::setitimer(ITIMER_REAL, &timer, nullptr);
}

__attribute__((constructor)) void begin() {
  if (setting("FAULTY_DISK_QUEUE") == "seccomp") refuse_io_uring();
  if (disk().interrupts()) interrupt_every_millisecond();
}

/// Returns a file descriptor for the memory of this process. Reads at address 0 fail with EIO.
int unreadable() {
  static const int file = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  return file;
}

/// Changes a ring entry according to the fault.
void inject_fault(io_uring_sqe& entry) {
  const bool writes = entry.opcode == IORING_OP_WRITE;
  if (!writes && entry.opcode != IORING_OP_READ) return;
  const std::size_t allowed = disk().allowed(entry.fd, entry.len);
  const bool is_faulty = disk().count_transfer(entry.fd, writes ? FaultyDisk::Write : FaultyDisk::Read);
  entry.len = static_cast<unsigned>(allowed);
  if (!is_faulty) return;
  if (writes && disk().is_full()) entry.opcode = IORING_OP_NOP;  // transfers 0 bytes
  if (!writes && disk().cannot_read()) entry.fd = unreadable(), entry.off = 0;
}

}  // namespace

extern "C" {

ssize_t pread64(int file, void* data, size_t bytes, off64_t offset) {
  const InterruptibleScope scope;
  static const auto original = next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  const bool is_faulty = disk().count_transfer(file, FaultyDisk::Read);
  if (is_faulty && disk().cannot_read()) {
    errno = EIO;
    return -1;
  }
  const ssize_t done = original(file, data, disk().allowed(file, bytes), offset);
  if (is_faulty && disk().flips() && done > 0) static_cast<char*>(data)[done / 2] ^= 4;
  return done;
}

ssize_t pread(int file, void* data, size_t bytes, off_t offset) {
  return pread64(file, data, bytes, offset);
}

ssize_t pwrite64(int file, const void* data, size_t bytes, off64_t offset) {
  const InterruptibleScope scope;
  static const auto original = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  if (disk().count_transfer(file, FaultyDisk::Write) && disk().is_full()) {
    errno = ENOSPC;
    return -1;
  }
  return original(file, data, disk().allowed(file, bytes), offset);
}

ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  return pwrite64(file, data, bytes, offset);
}

int fallocate64(int file, int mode, off64_t offset, off64_t bytes) {
  const InterruptibleScope scope;
  static const auto original = next<int(int, int, off64_t, off64_t)>("fallocate64");
  if (offset > 0 && disk().count_transfer(file, FaultyDisk::Growth) && disk().cannot_grow()) {
    errno = ENOSPC;
    return -1;
  }
  if (!setting("FAULTY_DISK_UNRESERVED").empty()) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return original(file, mode, offset, bytes);
}

int fallocate(int file, int mode, off_t offset, off_t bytes) {
  return fallocate64(file, mode, offset, bytes);
}

int statvfs64(const char* path, struct statvfs64* info) {
  static const auto original = next<int(const char*, struct statvfs64*)>("statvfs64");
  const int result = original(path, info);
  const char* free = std::getenv("FAULTY_DISK_FREE");
  if (result == 0 && free && std::string_view(path).starts_with(setting("FAULTY_DISK_FOLDER")))
    info->f_bavail = std::strtoull(free, nullptr, 10) / info->f_frsize;
  return result;
}

int statvfs(const char* path, struct statvfs* info) {
  static_assert(sizeof(struct statvfs) == sizeof(struct statvfs64));
  return statvfs64(path, reinterpret_cast<struct statvfs64*>(info));
}

int open64(const char* path, int flags, ...) {
  static const auto original = next<int(const char*, int, ...)>("open64");
  va_list more;
  va_start(more, flags);
  const bool is_nameless = (flags & O_TMPFILE) == O_TMPFILE;
  const mode_t mode = is_nameless || (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  if (is_nameless && !setting("FAULTY_DISK_NAMED").empty()) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return original(path, flags, mode);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_TMPFILE) == O_TMPFILE || (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open64(path, flags, mode);
}

int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  if (setting("FAULTY_DISK_QUEUE").empty()) return -ENOSYS;
  static const auto original = next<int(unsigned, io_uring*, unsigned)>("io_uring_queue_init");
  return original(entries, ring, flags);
}

int io_uring_submit(io_uring* ring) {
  const InterruptibleScope scope;
  static const auto original = next<int(io_uring*)>("io_uring_submit");
  io_uring_sq& queue = ring->sq;
  if (queue.sqe_head == queue.sqe_tail || !disk().transfers_partially()) {
    for (unsigned i = queue.sqe_head; i != queue.sqe_tail; ++i) inject_fault(queue.sqes[i & queue.ring_mask]);
    return original(ring);
  }
  const unsigned all = std::exchange(queue.sqe_tail, queue.sqe_head + 1);
  inject_fault(queue.sqes[queue.sqe_head & queue.ring_mask]);
  const int submitted = original(ring);
  queue.sqe_tail = all;
  return submitted;
}

int __io_uring_get_cqe(io_uring* ring, io_uring_cqe** entry, unsigned submit, unsigned wait_nr, sigset_t* mask) {
  const InterruptibleScope scope;
  static const auto original =
      next<int(io_uring*, io_uring_cqe**, unsigned, unsigned, sigset_t*)>("__io_uring_get_cqe");
  return original(ring, entry, submit, wait_nr, mask);
}

int fsync(int file) {
  const InterruptibleScope scope;
  static const auto original = next<int(int)>("fsync");
  return original(file);
}

int fdatasync(int file) {
  const InterruptibleScope scope;
  static const auto original = next<int(int)>("fdatasync");
  return original(file);
}
}
