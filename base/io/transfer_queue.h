// Transfers between memory and files that go on while the caller computes.
#pragma once
#include <memory>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// The file is open and the memory stays as it is until the transfer is waited for.
struct FileTransfer {
  enum class Kind : u8 { Read, Write };
  Kind kind = Kind::Read;
  int file = -1;
  i64 offset = 0;
  std::byte* data = nullptr;
  i64 bytes = 0;
};

/// For one thread. Transfers go on in any order: who wants one after another waits in between.
class TransferQueue {
 public:
  using Ticket = u64;

  virtual ~TransferQueue() = default;  ///< waits for all
  /// Cuts it into pieces of kPiece bytes, so that the disk has several to work on. Waits only while very many are under
  /// way.
  virtual Ticket start(const FileTransfer& transfer) = 0;
  /// Returns when it is done: 0, or the number of errno that says why not. Once for each ticket.
  virtual int wait(Ticket ticket) = 0;
  /// What carries them, for the log.
  virtual std::string_view name() const = 0;

  static constexpr i64 kPiece = i64{1} << 20;
};

/// Through io_uring; null where the system does not permit it, as in many containers.
std::unique_ptr<TransferQueue> make_ring_queue();
/// Through threads of its own, which call pread and pwrite.
std::unique_ptr<TransferQueue> make_thread_queue();
/// The first of these that there is.
std::unique_ptr<TransferQueue> make_transfer_queue();

}  // namespace mcpp
