#include "base/program/progress.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace mcpp {
namespace {

TEST(ProgressTest, TextShowsBarShareRateAndRemainingTime) {
  EXPECT_EQ(progress_text("verify", {.total = 1024 * 1024}, 256 * 1024, 2, "", 100),
            "verify [=======>                      ] 25 %, 128.00 KiB/s, 6.0s left");
  EXPECT_EQ(progress_text("read", {.total = 200, .unit = "documents"}, 200, 4, "3 empty", 100),
            "read [==============================] 100 %, 50 documents/s, 0.0s left, 3 empty");
  EXPECT_EQ(progress_text("read", {.unit = "documents"}, 200, 4, "", 100), "read 200 documents, 50 documents/s");
  EXPECT_EQ(progress_text("read", {.total = 10}, 0, 0, "", 100), "read [>                             ] 0 %, 0 B/s");
}

TEST(ProgressTest, TextFitsTerminalWidth) {
  const ProgressOptions of{.total = 100, .unit = "files"};
  for (std::size_t columns = 1; columns < 120; ++columns)
    EXPECT_LE(progress_text("import", of, 50, 10, "more", columns).size(), columns);
  EXPECT_EQ(progress_text("import", of, 50, 10, "", 48), "import [=====>     ] 50 %, 5 files/s, 10.0s left");
  EXPECT_EQ(progress_text("import", of, 50, 10, "", 41), "import 50 %, 5 files/s, 10.0s left") << "no space for a bar";
}

TEST(ProgressTest, ClampsBarWhenCountIsOutOfRange) {
  EXPECT_NE(progress_text("a", {.total = 10}, 20, 1, "", 100).find("100 %"), std::string::npos);
  EXPECT_NE(progress_text("a", {.total = 10}, -20, 1, "", 100).find(" 0 %"), std::string::npos);
}

/// Returns the output to a terminal of this type while `shows` runs and one line is logged afterwards.
template <class F>
std::string on_terminal(const char* kind, F&& shows) {
  std::fflush(stdout);  // the child would inherit buffered output
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::setenv("TERM", kind, 1);
    const Log log;
    shows(log);
    log.info("done");
    ::_exit(0);
  }
  std::string text, chunk(4096, ' ');
  for (ssize_t got = 0; (got = ::read(terminal, chunk.data(), chunk.size())) > 0;)
    text.append(chunk, 0, static_cast<std::size_t>(got));
  ::waitpid(child, nullptr, 0);
  ::close(terminal);
  return text;
}

/// Simulates 0.7 seconds of work.
void verify(const Log& log) {
  Progress progress(log, "verify", {.total = 7});
  for (int i = 0; i < 7; ++i) {
    progress.update(i);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void build(const Log& log) {
  const WaitIndicator waiting(log, "building");
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
}

TEST(ProgressTest, TerminalShowsBarAfterDelayAndClearsIt) {
  const std::string text = on_terminal("xterm", verify);
  EXPECT_TRUE(text.starts_with("\r\033[Kverify [")) << text;
  for (const char* early : {" 0 %", " 14 %", " 42 %"}) EXPECT_EQ(text.find(early), std::string::npos) << early;
  EXPECT_TRUE(text.ends_with("\r\033[Kdone\r\n")) << text;
}

TEST(ProgressTest, WaitIndicatorShowsItsNameOnTerminal) {
  const std::string text = on_terminal("xterm", build);
  EXPECT_TRUE(text.starts_with("\r\033[Kbuilding since 0.")) << text;
  EXPECT_TRUE(text.ends_with("\r\033[Kdone\r\n")) << text;
}

TEST(ProgressTest, DumbTerminalReceivesNoEscapes) {
  const auto both = [](const Log& log) {
    const WaitIndicator waiting(log, "building");
    verify(log);
  };
  EXPECT_EQ(on_terminal("dumb", both), "done\r\n");
}

TEST(ProgressTest, PipeReceivesNothing) {
  const Log log;
  testing::internal::CaptureStdout();
  {
    Progress progress(log, "verify", {.total = 2});
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    progress.update(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace mcpp
