// Delivery of messages to another program without delaying training.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/io/http_client.h"
#include "base/log.h"
#include "base/stored_ref.h"

namespace mcpp {

/// Delivers messages in order on its own thread. A receiver that fails never stops or delays training: a message is
/// retried with growing pauses, the oldest messages are dropped when the queue is full, and one warning is logged until
/// the receiver works again.
class BackgroundDelivery {
 public:
  enum class Outcome { Delivered, Rejected, Retry };
  struct Result {
    Outcome outcome = Outcome::Delivered;
    std::string problem = {};  ///< why the message was not delivered
  };
  struct Limits {
    std::size_t queue = 1000;        ///< messages
    double first_pause = 0.5;        ///< seconds before the first retry; each later pause is twice as long
    double max_pause = 30;           ///< seconds
    double max_closing_seconds = 5;  ///< time for messages that are queued when the object is destroyed
  };

  /// `receiver` names the destination in warnings. `deliver` is called on the thread; Rejected drops the message.
  BackgroundDelivery(std::string receiver, std::function<Result(const std::string& message)> deliver,
                     StoredRef<Log> log, Limits limits);
  /// Delivers the queued messages, for at most Limits::max_closing_seconds after the request in flight.
  ~BackgroundDelivery();
  BackgroundDelivery(const BackgroundDelivery&) = delete;
  BackgroundDelivery& operator=(const BackgroundDelivery&) = delete;

  /// Queues a message and returns immediately.
  void push(std::string message);
  /// Returns the number of messages that were dropped or rejected.
  std::size_t lost() const;

 private:
  void run();
  /// Waits before a retry; returns false if there is no time left.
  bool pause(std::unique_lock<std::mutex>& lock, double seconds);
  bool is_out_of_time() const;
  /// Logs the first failure after a success, and the first success after a failure.
  void report(const Result& result);

  const std::string receiver_;
  const std::function<Result(const std::string&)> deliver_;
  const Log& log_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> queue_;
  std::size_t lost_ = 0;
  bool is_closing_ = false;
  double closing_since_ = 0;
  bool is_failing_ = false;  // the last delivery failed, and a warning has been logged
  std::thread thread_;       // last member: uses all of the above
};

/// Posts a JSON message. Messages that the receiver may accept later are to be retried.
BackgroundDelivery::Result post_json(HttpClient& client, const std::string& url, std::vector<std::string> headers,
                                     std::string body, double timeout_seconds);

}  // namespace mcpp
