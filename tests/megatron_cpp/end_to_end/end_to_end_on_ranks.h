// For tests of the whole program on several ranks, under mpirun or the scripts that start it.
#pragma once
#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {

class EndToEndOnRanks : public EndToEnd {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
    EndToEnd::SetUp();
  }

  std::string train_on(int ranks, const std::string& save, const Words& more = {}) const {
    const Outcome outcome = run_on(ranks, pretrain(save, more));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }

  /// Words before the program that start it as users do, with scripts/<name>.
  static Words script(const std::string& name = "pretrain.sh") {
    const std::string path = (test::source_folder() / "scripts" / name).string();
    return {"sh", "-c", "export MEGATRON_CPP=\"$1\"; shift 2; exec " + path + " \"$@\"", "sh"};
  }

  /// The process that is this rank of the run that writes there.
  pid_t process_of(int rank, const std::string& save) const {
    const pid_t id = find_process(rank, save);
    if (id == 0) ADD_FAILURE() << "no process is rank " << rank;
    return id;
  }
  /// The same, 0 where there is none.
  pid_t find_process(int rank, const std::string& save) const {
    const std::string variable = str("OMPI_COMM_WORLD_RANK=", rank);
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      pid_t id = 0;
      if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc()) continue;
      if (holds(entry.path() / "environ", variable) && holds(entry.path() / "cmdline", at(save))) return id;
    }
    return 0;
  }
  /// Whether a file of strings that end with zero has one that contains the text; for a variable, is it.
  static bool holds(const Path& path, const std::string& text) {
    std::ifstream file(path);
    for (std::string word; std::getline(file, word, '\0');) {
      if (word == text || (text[0] == '/' && word.find(text) != std::string::npos)) return true;
    }
    return false;
  }
};

}  // namespace mcpp
