#include "checkpoint/async_save.h"

namespace mcpp {

Tensor AsyncSave::Source::data(std::size_t index) {
  check_input(!cancelled_, "the save was given up");
  return staging_.data(index);
}

AsyncSave::AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, const Log& log,
                     const FileSystem& files)
    : save_(std::move(target), std::move(state), world, log, files), source_(staging), writer_([this] {
        save_.write(source_);
        is_written_ = true;
      }) {}

AsyncSave::~AsyncSave() {
  source_.cancel();
  if (writer_.joinable()) writer_.join();
}

Path AsyncSave::finish() {
  writer_.join();
  return save_.finish();
}

}  // namespace mcpp
