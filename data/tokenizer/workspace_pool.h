// What the threads that share a coder need for themselves.
#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace mcpp {

/// Workspaces that are kept from text to text, for what they remember: as many as threads that encode at once.
template <class Workspace>
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> taken = std::move(free_.back());
    free_.pop_back();
    return taken;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace mcpp
