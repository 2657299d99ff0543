#include "megatron_cpp/monitor/background_delivery.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/machine.h"
#include "base/strings.h"

namespace mcpp {

BackgroundDelivery::BackgroundDelivery(std::string receiver, std::function<Result(const std::string&)> deliver,
                                       StoredRef<Log> log, Limits limits)
    : receiver_(std::move(receiver)), deliver_(std::move(deliver)), log_(log), limits_(limits), thread_([this] {
        run();
      }) {}

BackgroundDelivery::~BackgroundDelivery() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    closing_since_ = steady_seconds();
  }
  changed_.notify_all();
  thread_.join();
  if (const std::size_t left = queue_.size() + lost_; left > 0)
    log_.warn(str(receiver_, ": ", left, left == 1 ? " message was" : " messages were", " not delivered"));
}

void BackgroundDelivery::push(std::string message) {
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() == limits_.queue) {
      queue_.pop_front();
      ++lost_;
    }
    queue_.push_back(std::move(message));
  }
  changed_.notify_all();
}

std::size_t BackgroundDelivery::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

void BackgroundDelivery::run() {
  std::unique_lock lock(mutex_);
  double pause_seconds = limits_.first_pause;
  while (true) {
    changed_.wait(lock, [&] { return is_closing_ || !queue_.empty(); });
    if (queue_.empty() || is_out_of_time()) return;
    std::string message = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const Result result = deliver_(message);
    report(result);
    lock.lock();
    if (result.outcome == Outcome::Rejected) ++lost_;
    if (result.outcome != Outcome::Retry) {
      pause_seconds = limits_.first_pause;
      continue;
    }
    if (queue_.size() < limits_.queue)
      queue_.push_front(std::move(message));
    else
      ++lost_;
    if (!pause(lock, pause_seconds)) return;
    pause_seconds = std::min(2 * pause_seconds, limits_.max_pause);
  }
}

bool BackgroundDelivery::pause(std::unique_lock<std::mutex>& lock, double seconds) {
  const auto is_over = [this] { return is_closing_; };
  if (!is_closing_) {
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), is_over);
    return true;
  }
  const double left = limits_.max_closing_seconds - (steady_seconds() - closing_since_);
  if (left <= 0) return false;
  changed_.wait_for(lock, std::chrono::duration<double>(std::min(left, limits_.first_pause)), [] { return false; });
  return true;
}

bool BackgroundDelivery::is_out_of_time() const {
  return is_closing_ && steady_seconds() - closing_since_ > limits_.max_closing_seconds;
}

void BackgroundDelivery::report(const Result& result) {
  if (result.outcome == Outcome::Delivered) {
    if (std::exchange(is_failing_, false)) log_.info(str(receiver_, ": delivery works again"));
  } else if (!std::exchange(is_failing_, true)) {
    log_.warn(str(receiver_, ": ", result.problem,
                  result.outcome == Outcome::Retry ? "; delivery is retried" : "; the message is dropped",
                  ", and training continues"));
  }
}

BackgroundDelivery::Result post_json(HttpClient& client, const std::string& url, std::vector<std::string> headers,
                                     std::string body, double timeout_seconds) {
  headers.push_back("Content-Type: application/json");
  const HttpResponse response = client.send({.method = "POST",
                                             .url = url,
                                             .headers = std::move(headers),
                                             .body = std::move(body),
                                             .timeout_seconds = timeout_seconds});
  using Outcome = BackgroundDelivery::Outcome;
  if (response.is_success()) return {};
  return {response.is_retryable() ? Outcome::Retry : Outcome::Rejected, response.describe()};
}

}  // namespace mcpp
