#include "megatron_cpp/monitor/alert_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/io/http_client.h"
#include "base/machine.h"
#include "base/strings.h"
#include "base/system_error.h"
#include "base/url.h"

namespace mcpp {
namespace {

constexpr double kCommandTimeout = 30, kPostTimeout = 10;  // seconds

/// Starts "sh -c command" in its own process group, with the default signal mask. Returns 0 if that fails.
pid_t spawn_shell(const std::string& command, int input) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh", option = "-c", text = command;
  const std::array<char*, 4> arguments{shell.data(), option.data(), text.data(), nullptr};
  pid_t process = 0;
  if (::posix_spawn(&process, "/bin/sh", &actions, &attributes, arguments.data(), environ) != 0) process = 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

/// Returns the URL, or the value of the environment variable that it names as "$NAME".
std::string resolve_webhook(const std::string& url) {
  const char* const value = url.starts_with('$') ? std::getenv(url.c_str() + 1) : url.c_str();
  check_input(value && is_http_url(value), "logging.alert_webhook: ",
              value ? str(url, " is not a URL that begins with http:// or https://")
                    : str("the environment variable ", url.substr(1), " is not set"));
  return value;
}

/// Waits for a process until the time of steady_seconds(), then kills its group. Returns its status.
int wait_or_kill(pid_t process, double deadline, bool& is_killed) {
  int status = 0;
  constexpr int kPauseMicroseconds = 10'000;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (steady_seconds() > deadline && !std::exchange(is_killed, true)) ::kill(-process, SIGKILL);
    ::usleep(kPauseMicroseconds);
  }
  return status;
}

}  // namespace

std::string run_shell_command(const std::string& command, const std::string& input, double timeout_seconds) {
  // A file rather than a pipe: a command that does not read its input cannot block or raise SIGPIPE.
  const int file = ::memfd_create("alert", MFD_CLOEXEC);
  if (file < 0) return "memfd_create: " + system_reason(last_system_error());
  const bool is_written = ::write(file, input.data(), input.size()) == static_cast<ssize_t>(input.size());
  ::lseek(file, 0, SEEK_SET);
  const pid_t process = is_written ? spawn_shell(command, file) : 0;
  ::close(file);
  if (process == 0) return "cannot be started";
  bool is_killed = false;
  const int status = wait_or_kill(process, steady_seconds() + timeout_seconds, is_killed);
  if (is_killed) return str("still runs after ", timeout_seconds, " seconds and is killed");
  if (WIFSIGNALED(status)) return str("is ended by signal ", WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : str("exits with code ", WEXITSTATUS(status));
}

AlertSink::AlertSink(const LoggingConfig& config, std::string run, StoredRef<Log> log,
                     BackgroundDelivery::Limits limits)
    : events_(config.alert_events), run_(std::move(run)) {
  using Outcome = BackgroundDelivery::Outcome;
  using Result = BackgroundDelivery::Result;
  if (!config.alert_command.empty()) {
    const auto run_command = [command = config.alert_command](const std::string& message) {
      const std::string problem = run_shell_command(command, message, kCommandTimeout);
      return problem.empty() ? Result{} : Result{Outcome::Rejected, problem};
    };
    receivers_.push_back(std::make_unique<BackgroundDelivery>("logging.alert_command", run_command, log, limits));
  }
  if (!config.alert_webhook.empty()) {
    const auto post = [url = resolve_webhook(config.alert_webhook), client = std::make_shared<HttpClient>()](
                          const std::string& message) { return post_json(*client, url, {}, message, kPostTimeout); };
    receivers_.push_back(std::make_unique<BackgroundDelivery>("logging.alert_webhook", post, log, limits));
  }
}

void AlertSink::write_event(const RunEvent& event) {
  const std::string name(enum_name(event.kind));
  if (std::ranges::find(events_, name) == events_.end()) return;
  const OrderedJson message{{"text", str(run_.empty() ? "training" : run_, ": ", name, ": ", event.text)},
                            {"event", name},
                            {"iteration", event.iteration},
                            {"run", run_},
                            {"host", host_}};
  for (const auto& receiver : receivers_)
    receiver->push(message.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

}  // namespace mcpp
