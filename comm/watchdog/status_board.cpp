#include "comm/watchdog/status_board.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace mcpp {
namespace {

constexpr i64 kHeaderBytes = 64;

std::shared_ptr<void> allocate_zeroed(i64 bytes) {
  return {std::calloc(1, static_cast<std::size_t>(bytes)), std::free};
}

}  // namespace

StatusBoard::StatusBoard(int rank) : StatusBoard(allocate_zeroed(bytes_for(1)), 1, 0, rank) {}

StatusBoard::StatusBoard(std::shared_ptr<void> memory, int ranks, int index, int rank)
    : memory_(std::move(memory)), ranks_(ranks), index_(index) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  entry(index).rank = rank;
  entry(index).process = ::getpid();
}

i64 StatusBoard::bytes_for(int ranks) {
  return kHeaderBytes + ranks * static_cast<i64>(sizeof(Entry));
}

// Zero bytes are a valid Entry: lock-free integer atomics need no construction.
StatusBoard::Entry& StatusBoard::entry(int index) const {
  return reinterpret_cast<Entry*>(static_cast<std::byte*>(memory_.get()) + kHeaderBytes)[index];
}

void StatusBoard::show(std::string_view text, bool waits) {
  std::array<u64, kWords> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof(words)));
  Entry& own_entry = entry(index_);
  ++own_entry.version;
  for (std::size_t i = 0; i < kWords; ++i) own_entry.text[i] = words[i];
  own_entry.waits = waits;
  ++own_entry.version;
  ++own_entry.heartbeats;
}

std::vector<StatusBoard::Status> StatusBoard::read() const {
  std::vector<Status> all;
  for (int index = 0; index < ranks_; ++index) all.push_back(read(entry(index)));
  return all;
}

StatusBoard::Status StatusBoard::read(const Entry& entry) {
  constexpr int kTries = 1000;  // a writer may have been suspended: then a torn text is accepted
  Status status;
  std::array<u64, kWords> words{};
  for (int tries = 0; tries < kTries; ++tries) {
    const u64 version = entry.version;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = entry.text[i];
    status.waits = entry.waits != 0;
    if (version % 2 == 0 && entry.version == version) break;
  }
  status.rank = static_cast<int>(entry.rank);
  status.process = entry.process;
  status.heartbeats = entry.heartbeats;
  const auto* text = reinterpret_cast<const char*>(words.data());
  status.text.assign(text, ::strnlen(text, sizeof(words)));
  return status;
}

bool StatusBoard::claim() {
  return header().claimed.exchange(1) == 0;
}

bool StatusBoard::record_signal(int signal) {
  u64 none = 0;
  return header().signal.compare_exchange_strong(none, static_cast<u64>(signal));
}

int StatusBoard::recorded_signal() const {
  return static_cast<int>(header().signal.load());
}

}  // namespace mcpp
