// Runs the real program in child processes, and returns the exit code and both outputs.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/support/build.h"

namespace mcpp::test {

struct Outcome {
  int code = 0;            ///< exit code, or the negated number of the signal that ended the program
  double cpu_seconds = 0;  ///< CPU time of the program and of all children it waited for
  std::string out, err;
};

/// Returns the CPU time of a running process, of its running children, and of those it has waited for.
inline double cpu_seconds_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/";
  std::ifstream file(folder + "stat");
  std::string stat, word;
  std::getline(file, stat);
  std::istringstream fields(
      stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));  // the name may contain any character
  for (int field = 3; field < 14; ++field) fields >> word;
  double ticks = 0, seconds = 0;
  for (int field = 14; field <= 17 && fields >> ticks; ++field)
    seconds += ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::ifstream children(folder + "task/" + std::to_string(pid) + "/children");
  for (pid_t child = 0; children >> child;) seconds += cpu_seconds_of(child);
  return seconds;
}

/// Running megatron_cpp process, started by the constructor and killed by the destructor if it still runs.
class Program {
 public:
  /// Writes the outputs to <output>.out and <output>.err. `file_limit` is the maximum size of files in bytes (0: none);
  /// like on a full disk, writing more fails. `launcher` precedes the program, for example mpirun.
  Program(const std::vector<std::string>& args, const Path& output, i64 file_limit = 0,
          const std::vector<std::string>& launcher = {})
      : output_(output) {
    std::vector<std::string> words = launcher;
    words.push_back(path());
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = output.string() + ".out", err = output.string() + ".err";
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ != 0) return;
    for (const auto& [path, stream] : {std::pair(&out, STDOUT_FILENO), std::pair(&err, STDERR_FILENO)}) {
      const int file = ::open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      if (file < 0 || ::dup2(file, stream) < 0) ::_exit(126);
    }
    const rlimit limit{static_cast<rlim_t>(file_limit), static_cast<rlim_t>(file_limit)};
    if (file_limit > 0 && ::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
    ::setenv("OMP_WAIT_POLICY", "passive", 1);  // tests share their cores, so waiting threads must not spin
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ~Program() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  static std::string path() { return binary_folder() / "megatron_cpp"; }

  void signal(int number) const { ::kill(pid_, number); }
  double cpu_seconds() const { return cpu_seconds_of(pid_); }
  Outcome wait() {
    int status = 0;
    rusage used{};
    while (::wait4(pid_, &status, 0, &used) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
            .cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime),
            .out = read_text_file(output_.string() + ".out"),
            .err = read_text_file(output_.string() + ".err")};
  }

 private:
  Path output_;
  pid_t pid_ = -1;
};

}  // namespace mcpp::test
