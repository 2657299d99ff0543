// Transfer queue of a faulty disk.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "base/io/transfer_queue.h"
#include "base/system_error.h"
#include "tests/support/errors.h"

namespace mcpp::test {

/// Applies a planned fault to transfers.
class FaultyQueue final : public TransferQueue {
 public:
  enum class Fault { None, DiskIsFull, BitIsFlipped, DiskIsSlow, ReadFails };
  struct Plan {
    Fault fault = Fault::None;
    i64 transfers_before = 0;
  };

  explicit FaultyQueue(const Plan& plan) : plan_(plan) {}

  Ticket start(const FileTransfer& transfer) override {
    const Ticket ticket = queue_->start(transfer);
    started_[ticket] = transfer;
    return ticket;
  }
  int wait(Ticket ticket) override {
    const int error = queue_->wait(ticket);
    const FileTransfer transfer = started_.at(ticket);
    const bool reads = transfer.kind == FileTransfer::Kind::Read;
    if (plan_.fault == Fault::DiskIsSlow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if ((plan_.fault == Fault::DiskIsFull) == reads || ++seen_ <= plan_.transfers_before) return error;
    if (plan_.fault == Fault::DiskIsFull) return ENOSPC;
    if (plan_.fault == Fault::ReadFails) return EIO;
    if (plan_.fault == Fault::BitIsFlipped) transfer.data[transfer.bytes / 2] ^= std::byte{4};
    return error;
  }
  std::string_view name() const override { return "faults"; }

 private:
  const Plan& plan_;
  std::unique_ptr<TransferQueue> queue_ = make_transfer_queue();
  std::map<Ticket, FileTransfer> started_;
  i64 seen_ = 0;
};

/// Runs `work` with a fault and returns the message of the error that requests a restart, or "" if there is none.
/// `work` receives the plan of the queue, sets up its state without the fault, and returns the function that runs with
/// it.
inline std::string error_of_fault(const FaultyQueue::Plan& fault,
                                  const std::function<std::function<void()>(const FaultyQueue::Plan&)>& work) {
  FaultyQueue::Plan plan;
  const std::function<void()> run = work(plan);
  plan = fault;
  return error_with(ExitCode::PeerLost, run);
}

}  // namespace mcpp::test
