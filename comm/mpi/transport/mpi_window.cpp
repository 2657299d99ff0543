#include "comm/mpi/transport/mpi_window.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Spin-loop hint to the processor.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr i64 kBarrierBytes = 64;  // in the memory of rank 0
constexpr i64 kHeaderBytes = kBarrierBytes + SharedWindow::kMetadataBytes;

/// Waits on a shared futex, at most one millisecond. (The futex of std::atomic::wait is process-private.)
void futex_wait(std::atomic<u32>& word, u32 value) {
  const timespec timeout{.tv_sec = 0, .tv_nsec = 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}
void futex_wake_all(std::atomic<u32>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Throws OutOfMemory if the shared memory file system has fewer bytes left.
void check_shared_memory(i64 needed) {
  struct statvfs system {};
  if (::statvfs("/dev/shm", &system) != 0) return;
  const auto available = static_cast<double>(system.f_bavail) * static_cast<double>(system.f_frsize);
  if (available >= static_cast<double>(needed)) return;
  fail(ExitCode::OutOfMemory, "/dev/shm has ", human_bytes(available), " left, and the ranks of this node need ",
       human_bytes(static_cast<double>(needed)),
       " of shared memory; remove files from it, or enlarge it (mount -o remount,size=1G /dev/shm, or the "
       "container's --shm-size)");
}

}  // namespace

SharedWindow::SharedWindow(const MpiComm& node, WaitPolicy wait_policy)
    : rank_(node.rank()), wait_policy_(std::move(wait_policy)), slots_(node.size()) {
  static_assert(sizeof(Barrier) <= kBarrierBytes && std::atomic<u32>::is_always_lock_free);
  constexpr i64 kBytes = kHeaderBytes + 2 * kSlotBytes;
  void* own = nullptr;
  const int result =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(kBytes), 1, MPI_INFO_NULL, node.get(), &own, &window_);
  if (result != MPI_SUCCESS) check_shared_memory(kBytes * size());
  check_mpi(result, "MPI_Win_allocate_shared");
  for (int r = 0; r < size(); ++r) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* memory = nullptr;
    check_mpi(MPI_Win_shared_query(window_, r, &bytes, &unit, &memory), "MPI_Win_shared_query");
    slots_[r] = static_cast<std::byte*>(memory) + kHeaderBytes;
    if (r == 0) barrier_ = static_cast<Barrier*>(memory);
  }
  if (rank_ == 0) new (barrier_) Barrier{};
  // The barrier's atomics order all loads and stores; MPI only requires an open epoch.
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
  complete("MPI_Ibarrier", wait_policy_, [&](MPI_Request* request) { return MPI_Ibarrier(node.get(), request); });
}

SharedWindow::~SharedWindow() {
  if (!can_free()) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

void SharedWindow::barrier() {
  const u32 generation = barrier_->generation.load(std::memory_order_acquire);
  if (barrier_->arrived.fetch_add(1) + 1 == static_cast<u32>(size())) {
    barrier_->arrived.store(0);
    barrier_->generation.store(generation + 1);
    if (barrier_->sleepers.load() > 0) futex_wake_all(barrier_->generation);
    return;
  }
  for (PollLoop poll_loop(wait_policy_); barrier_->generation.load() == generation;) {
    const PollLoop::Step step = poll_loop.next();
    if (step == PollLoop::Step::Poll) {
      pause();
      continue;
    }
    if (step == PollLoop::Step::Yield) {
      ::sched_yield();
      continue;
    }
    wait_policy_.check();
    ++barrier_->sleepers;
    futex_wait(barrier_->generation, generation);
    --barrier_->sleepers;
    drive_mpi_progress();
  }
}

}  // namespace mcpp
