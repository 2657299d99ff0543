#include "base/program/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr double kFirstDelay = 0.5, kPause = 0.2, kPlainPause = 10;  // seconds

std::size_t terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool is_dumb_terminal() {
  const char* kind = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && kind != nullptr && std::string_view(kind) == "dumb";
}

std::string format_amount(double number, const std::string& unit) {
  return unit.empty() ? human_bytes(number) : human_count(number);
}

std::string progress_bar(double fraction, std::size_t width) {
  const auto full = static_cast<std::size_t>(fraction * static_cast<double>(width));
  std::string bar(full, '=');
  if (full < width) bar += '>';
  bar.resize(width, ' ');
  return "[" + bar + "]";
}

}  // namespace

std::string progress_text(const std::string& what, const ProgressOptions& options, double done, double seconds,
                          std::string_view more, std::size_t columns) {
  const std::string rate = str(format_amount(done / std::max(seconds, 1e-3), options.unit),
                               options.unit.empty() ? "/s" : " " + options.unit + "/s");
  std::string tail = rate;
  if (options.total > 0) {
    const double fraction = std::clamp(done / options.total, 0.0, 1.0);
    tail = str(static_cast<int>(100 * fraction), " %, ", rate);
    if (fraction > 0) tail += str(", ", human_seconds(seconds * (1 - fraction) / fraction), " left");
  } else {
    tail = str(format_amount(done, options.unit), options.unit.empty() ? "" : " " + options.unit, ", ", rate);
  }
  if (!more.empty()) tail += str(", ", more);
  std::string text = what + " ";
  constexpr std::size_t kBrackets = 3, kMaxBar = 30, kMinBar = 5;  // including the space after the bar
  const std::size_t used = text.size() + tail.size() + kBrackets;
  if (options.total > 0 && columns >= used + kMinBar)
    text += progress_bar(std::clamp(done / options.total, 0.0, 1.0), std::min(kMaxBar, columns - used)) + " ";
  text += tail;
  return text.substr(0, columns);
}

Progress::Progress(StoredRef<Log> log, std::string what, ProgressOptions options)
    : log_(log),
      what_(std::move(what)),
      options_(std::move(options)),
      is_live_(log_.is_live()),
      is_plain_(!is_live_ && is_dumb_terminal()),
      next_(is_plain_ ? kPlainPause : kFirstDelay) {}

Progress::~Progress() {
  if (is_shown_) log_.progress("");
}

void Progress::update(double done, std::string_view more) {
  if (!is_live_ && !is_plain_) return;
  const double now = seconds();
  if (now < next_) return;
  next_ = now + (is_live_ ? kPause : kPlainPause);
  const std::size_t columns = terminal_columns();
  const std::string text = progress_text(what_, options_, done, now, more, columns > 1 ? columns - 1 : 1);
  if (is_plain_) return log_.info(text);
  is_shown_ = true;
  log_.progress(text);
}

WaitIndicator::WaitIndicator(StoredRef<Log> log, std::string what) {
  const Log& live_log = log;
  if (!live_log.is_live()) return;
  ticker_ = std::jthread([&live_log, text = std::move(what)](const std::stop_token& stop) {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any stopped;
    const auto start = std::chrono::steady_clock::now();
    const auto has_ended = [&](double pause) {
      return stopped.wait_for(lock, stop, std::chrono::duration<double>(pause), [&] { return stop.stop_requested(); });
    };
    for (double pause = kFirstDelay; !has_ended(pause); pause = 1) {
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
      live_log.progress(str(text, " since ", human_seconds(passed.count())).substr(0, terminal_columns() - 1));
    }
    live_log.progress("");
  });
}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace mcpp
