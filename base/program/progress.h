// What a terminal shows while something takes long: a bar, the rate, and how long the rest will take.
#pragma once
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/kept_ref.h"
#include "base/log.h"

namespace mcpp {

/// What is counted: bytes are shown as such, other things with their name.
struct ProgressOf {
  double total = 0;       ///< 0 = not known: then there is neither a bar nor an end
  std::string unit = "";  ///< "documents"; empty = bytes
};

/// Shown by rank 0 on the live line of a terminal, which is overwritten, once something took half a second and then
/// five times a second; on a terminal that cannot overwrite (TERM=dumb) a plain line every ten seconds; elsewhere
/// never. For one thread.
class Progress {
 public:
  Progress(KeptRef<Log> log, std::string what, ProgressOf of);
  ~Progress();  ///< clears the live line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of the total, counted from the start; `more` is shown behind it.
  void update(double done, std::string_view more = "");

 private:
  double seconds() const;

  const Log& log_;
  std::string what_;
  ProgressOf of_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool is_live_, is_plain_, is_shown_ = false;
  double next_ = 0;  // seconds
};

/// The same for what does not say how far it is: from construction on a thread shows that time passes.
class Waiting {
 public:
  Waiting(KeptRef<Log> log, std::string what);

 private:
  std::jthread ticker_;
};

/// One line of it, at most `columns` wide: "verify [=====>    ] 52 %, 1.20 GiB/s, 8.1s left".
std::string progress_text(const std::string& what, const ProgressOf& of, double done, double seconds,
                          std::string_view more, std::size_t columns);

}  // namespace mcpp
