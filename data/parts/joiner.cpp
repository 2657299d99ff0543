#include "data/parts/joiner.h"

#include <utility>

#include "base/check.h"

namespace mcpp {

PartsJoiner::PartsJoiner(const PartsFolder& folder, const std::vector<WorkUnit>& units,
                         const PreprocessOptions& options, int process)
    : units_(units), waiting_(units.size()) {
  for (std::size_t key = 0; key < folder.keys().size(); ++key)
    keys_.push_back(std::make_unique<PartsAssembly>(folder, key, options, process));
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void PartsJoiner::add(std::size_t unit, PartNote note, int owner) {
  malformed_lines_ += note.malformed_lines;
  {
    const std::lock_guard lock(mutex_);
    waiting_[unit] = {.note = std::move(note), .owner = owner};
  }
  changed_.notify_all();
}

void PartsJoiner::run(const std::stop_token& stop) {
  try {
    while (joined_ < units_.size()) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return waiting_[joined_].has_value(); }) || stop.stop_requested()) return;
      const Part part = *std::exchange(waiting_[joined_], std::nullopt);
      lock.unlock();
      for (const auto& key : keys_) key->add(units_[joined_], part.note, part.owner);
      lock.lock();
      ++joined_;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

void PartsJoiner::check() {
  const std::lock_guard lock(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void PartsJoiner::finish() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || joined_ == units_.size(); });
  }
  check();
  for (const auto& key : keys_) key->finish();
}

std::vector<PreprocessOutput> PartsJoiner::publish() const {
  std::vector<PreprocessOutput> outputs;
  for (const auto& key : keys_) outputs.push_back(key->publish());
  return outputs;
}

i64 PartsJoiner::empty_documents() const {
  i64 documents = 0;
  for (const auto& key : keys_) documents += key->empty_documents();
  return documents;
}

}  // namespace mcpp
