// Asynchronous transfers between memory and files.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Transfer request. The file must stay open and the memory unchanged until the transfer has been waited for.
struct FileTransfer {
  enum class Kind : u8 { Read, Write };
  Kind kind = Kind::Read;
  int file = -1;
  i64 offset = 0;
  std::byte* data = nullptr;
  i64 bytes = 0;
};

/// Transfers all bytes, blocking the caller. Returns 0 or an errno: EIO at the end of the file, ENOSPC if nothing can
/// be written.
[[nodiscard]] int transfer_now(FileTransfer transfer);

/// Queue of asynchronous transfers, used by one thread. Transfers complete in any order; callers that need ordering
/// must wait() in between.
class TransferQueue {
 public:
  using Ticket = u64;

  virtual ~TransferQueue() = default;  ///< waits for all transfers
  /// Starts a transfer, split into chunks of kChunk bytes so that the disk works on several concurrently. Blocks only
  /// while the queue is full.
  virtual Ticket start(const FileTransfer& transfer) = 0;
  /// Waits for the transfer. Returns 0 or an errno. Must be called once per ticket.
  virtual int wait(Ticket ticket) = 0;
  /// Waits for all of `tickets`. Returns 0 or the errno of the first failed transfer.
  int wait_all(const std::vector<Ticket>& tickets);
  /// Returns the name of the implementation, for the log.
  virtual std::string_view name() const = 0;

  static constexpr i64 kChunk = i64{1} << 20;
};

/// Returns an io_uring queue, or null if the system does not permit it, as in many containers.
std::unique_ptr<TransferQueue> make_ring_queue();
/// Returns a queue with its own threads, which call pread and pwrite.
std::unique_ptr<TransferQueue> make_thread_queue();
/// Returns an io_uring queue if available, otherwise a thread queue.
std::unique_ptr<TransferQueue> make_transfer_queue();

}  // namespace mcpp
