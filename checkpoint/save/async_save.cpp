#include "checkpoint/save/async_save.h"

#include <chrono>

namespace mcpp {

Tensor AsyncSave::Source::data(std::size_t index) {
  check_input(!stop_.stop_requested(), "the save was given up");
  return staging_.data(index);
}

AsyncSave::AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, StoredRef<Log> log,
                     StoredRef<FileSystem> files)
    : save_(std::move(target), std::move(state), world, log, files),
      source_(staging, stop_.get_token()),
      work_(std::async(std::launch::async, [this] { copy_and_write(); })) {}

AsyncSave::~AsyncSave() {
  stop_.request_stop();
}

void AsyncSave::copy_and_write() {
  save_.write(source_, [this] {
    source_.copy();
    notify_copied();
  });
  notify_copied();  // also after a failed copy
}

void AsyncSave::notify_copied() {
  is_copied_ = true;
  is_copied_.notify_all();
}

bool AsyncSave::is_idle() const {
  return work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool AsyncSave::advance() {
  work_.wait();
  if (is_committing_) {
    save_.finish();
    return true;
  }
  save_.gather();
  is_committing_ = true;
  work_ = std::async(std::launch::async, [this] { save_.commit(); });
  return false;
}

}  // namespace mcpp
