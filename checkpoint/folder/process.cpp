#include "checkpoint/folder/process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>

#include "base/strings.h"

namespace mcpp {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string process_tag() {
  return str(host_name(), "-", ::getpid());
}

namespace {

/// A zombie has ended: it only waits for its parent to ask for its exit code, which may take seconds.
bool runs(pid_t pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) return false;
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(')');  // after the name, which may hold anything: ") Z ..."
  return state == std::string::npos || text.compare(state, 3, ") Z") != 0;
}

}  // namespace

bool is_stale_tag(const std::string& tag) {
  const std::size_t dash = tag.rfind('-');
  if (dash != std::string::npos && tag.substr(0, dash) != host_name()) return true;
  std::string number = dash == std::string::npos ? tag : tag.substr(dash + 1);
  if (dash == std::string::npos) number.resize(std::min(number.find('.'), number.size()));
  pid_t pid = 0;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), pid);
  if (error != std::errc() || stop != number.data() + number.size() || pid <= 0) return false;
  return pid == ::getpid() || !runs(pid);
}

}  // namespace mcpp
