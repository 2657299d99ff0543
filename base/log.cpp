#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace mcpp {
namespace {

constexpr const char* kClearLine = "\r\033[K";

}  // namespace

void Log::info(std::string_view line) const {
  if (rank_ != 0) return;
  if (progress_shown_.exchange(false)) std::fputs(kClearLine, stdout);
  std::fprintf(stdout, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

void Log::warn(std::string_view line) const {
  if (rank_ == 0) warn_from_any_rank(line);
}

void Log::warn_from_any_rank(std::string_view line) const {
  if (progress_shown_.exchange(false)) std::fputs(kClearLine, stdout), std::fflush(stdout);
  if (rank_ != 0) std::fprintf(stderr, "[rank %d] ", rank_);
  std::fprintf(stderr, "warning: %.*s\n", static_cast<int>(line.size()), line.data());
}

void Log::write_unbuffered(std::string_view line) const {
  const int file = rank_ == 0 ? STDOUT_FILENO : STDERR_FILENO;
  std::string text = progress_shown_.exchange(false) ? kClearLine : "";
  if (rank_ != 0) text += "[rank " + std::to_string(rank_) + "] ";
  text.append(line).append("\n");
  pollfd writable{.fd = file, .events = POLLOUT, .revents = 0};
  if (::poll(&writable, 1, 0) <= 0) return;  // a writable pipe accepts a short line without blocking
  [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
}

void Log::progress(std::string_view line) const {
  if (rank_ != 0 || !is_live()) return;
  std::fprintf(stdout, "%s%.*s", kClearLine, static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
  progress_shown_ = true;
}

bool Log::is_live() const {
  const char* terminal = std::getenv("TERM");  // a dumb terminal cannot overwrite a line
  return allows_live_line_ && ::isatty(STDOUT_FILENO) != 0 &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

}  // namespace mcpp
