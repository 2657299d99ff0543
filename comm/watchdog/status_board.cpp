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
  card(index).rank = rank;
  card(index).process = ::getpid();
}

i64 StatusBoard::bytes_for(int ranks) {
  return kHeaderBytes + ranks * static_cast<i64>(sizeof(Card));
}

// Zero bytes are a valid Card: lock-free integer atomics need no construction.
StatusBoard::Card& StatusBoard::card(int index) const {
  return reinterpret_cast<Card*>(static_cast<std::byte*>(memory_.get()) + kHeaderBytes)[index];
}

void StatusBoard::show(std::string_view text, bool waits) {
  std::array<u64, kWords> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), sizeof(words)));
  Card& own = card(index_);
  ++own.version;
  for (std::size_t i = 0; i < kWords; ++i) own.text[i] = words[i];
  own.waits = waits;
  ++own.version;
  ++own.heartbeats;
}

std::vector<StatusBoard::Status> StatusBoard::read() const {
  std::vector<Status> all;
  for (int index = 0; index < ranks_; ++index) all.push_back(read(card(index)));
  return all;
}

StatusBoard::Status StatusBoard::read(const Card& card) {
  constexpr int kTries = 1000;  // a writer may have been suspended: then a torn text is accepted
  Status status;
  std::array<u64, kWords> words{};
  for (int tries = 0; tries < kTries; ++tries) {
    const u64 version = card.version;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = card.text[i];
    status.waits = card.waits != 0;
    if (version % 2 == 0 && card.version == version) break;
  }
  status.rank = static_cast<int>(card.rank);
  status.process = card.process;
  status.heartbeats = card.heartbeats;
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
