// Asynchronous copies that are made as late as possible, so that code without the necessary wait reads wrong values.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "tensor/host/async_copy.h"
#include "tensor/transfer.h"

namespace mcpp::test {

/// Engine for copies between CPU tensors, where one device acts as the accelerator. Reports host memory that is not
/// pinned, or pinned twice, as a test failure.
class LazyCopies final : public AsyncCopyEngine {
 public:
  explicit LazyCopies(Device& device) : AsyncCopyEngine(device) {}
  /// Shares the set of pinned memory with `other`.
  LazyCopies(Device& device, const LazyCopies& other) : AsyncCopyEngine(device), pinned_(other.pinned_) {}

  AsyncCopy to_host(const Tensor& from, const Tensor& to) override { return start(to_host_, from, to, to); }
  AsyncCopy to_device(const Tensor& from, const Tensor& to) override { return start(to_device_, from, to, from); }
  bool is_synchronous() const override { return false; }

  std::shared_ptr<void> pin(void* memory, i64 bytes) override {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory), end = begin + static_cast<std::uintptr_t>(bytes);
    EXPECT_TRUE(begin % kPage == 0 && end % kPage == 0) << "not page-aligned";
    for (const auto& [first, last] : *pinned_) EXPECT_TRUE(end <= first || last <= begin) << "pinned twice";
    (*pinned_)[begin] = end;
    return {memory, [pinned = pinned_, begin](void*) { pinned->erase(begin); }};
  }
  std::size_t begun() const { return begun_; }
  /// Returns the number of pending copies.
  std::size_t num_pending() const { return to_host_->size() + to_device_->size(); }

 private:
  static constexpr std::uintptr_t kPage = 4096;
  struct Pending {
    Tensor from, to;
  };
  using Queue = std::deque<std::shared_ptr<Pending>>;

  /// Copies in one direction are made in order.
  class State final : public AsyncCopy::State {
   public:
    State(std::shared_ptr<Queue> queue, std::shared_ptr<Pending> copy)
        : queue_(std::move(queue)), copy_(std::move(copy)) {}
    void wait() override { run(); }
    void make_stream_wait() override { run(); }

   private:
    void run() {
      while (copy_->from.defined()) {
        const std::shared_ptr<Pending> next = queue_->front();
        queue_->pop_front();
        std::memcpy(next->to.raw(), next->from.raw(), static_cast<std::size_t>(next->from.bytes()));
        *next = {};
      }
    }
    std::shared_ptr<Queue> queue_;
    std::shared_ptr<Pending> copy_;
  };

  AsyncCopy start(const std::shared_ptr<Queue>& queue, const Tensor& from, const Tensor& to, const Tensor& on_host) {
    EXPECT_EQ(from.bytes(), to.bytes());
    if (from.bytes() == 0) return {};
    EXPECT_TRUE(is_pinned(on_host));
    std::memset(to.raw(), 0xff, static_cast<std::size_t>(to.bytes()));
    queue->push_back(std::make_shared<Pending>(Pending{from, to}));
    ++begun_;
    return AsyncCopy(std::make_unique<State>(queue, queue->back()));
  }
  bool is_pinned(const Tensor& t) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(t.raw());
    const auto after = pinned_->upper_bound(begin);
    return after != pinned_->begin() && begin + static_cast<std::uintptr_t>(t.bytes()) <= std::prev(after)->second;
  }

  std::size_t begun_ = 0;
  std::shared_ptr<Queue> to_host_ = std::make_shared<Queue>(), to_device_ = std::make_shared<Queue>();
  std::shared_ptr<std::map<std::uintptr_t, std::uintptr_t>> pinned_ =
      std::make_shared<std::map<std::uintptr_t, std::uintptr_t>>();
};

}  // namespace mcpp::test
