// Pool of the working memory of threads that share a coder.
#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace mcpp {

/// Pool of reusable workspaces and their caches. Holds one workspace per thread that encodes concurrently.
template <class Workspace>
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> acquire() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(free_.back());
    free_.pop_back();
    return workspace;
  }
  void release(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

}  // namespace mcpp
