// Fixture for tests of the real program on several ranks, under mpirun or the launch scripts.
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

  std::string train_on(int ranks, const std::string& save, const Strings& more = {}) const {
    const Outcome outcome = run_on(ranks, pretrain(save, more));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }

  /// Returns the launcher words that start the program as users do, with scripts/<name>.
  static Strings script(const std::string& name = "pretrain.sh") {
    const std::string path = (test::source_folder() / "scripts" / name).string();
    return {"sh", "-c", "export MEGATRON_CPP=\"$1\"; shift 2; exec " + path + " \"$@\"", "sh"};
  }

  /// Returns the process that is this rank of the run that saves in `save`.
  pid_t process_of(int rank, const std::string& save) const {
    const pid_t id = find_process(rank, save);
    if (id == 0) ADD_FAILURE() << "no process is rank " << rank;
    return id;
  }
  /// Returns the process that is this rank of the run that saves in `save`, or 0.
  pid_t find_process(int rank, const std::string& save) const {
    const std::string variable = str("OMPI_COMM_WORLD_RANK=", rank);
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      pid_t id = 0;
      if (std::from_chars(name.data(), name.data() + name.size(), id).ec != std::errc()) continue;
      if (contains_string(entry.path() / "environ", variable) && contains_string(entry.path() / "cmdline", at(save)))
        return id;
    }
    return 0;
  }
  /// Returns true if a file of zero-terminated strings has one that equals `text` or, if `text` is a path, contains it.
  static bool contains_string(const Path& path, const std::string& text) {
    std::ifstream file(path);
    for (std::string word; std::getline(file, word, '\0');) {
      if (word == text || (text[0] == '/' && word.find(text) != std::string::npos)) return true;
    }
    return false;
  }
};

}  // namespace mcpp
