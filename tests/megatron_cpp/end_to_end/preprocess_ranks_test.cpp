// Preprocessing shared by several ranks, which is killed and restarted.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class PreprocessOnRanksTest : public EndToEndOnRanks {
 protected:
  Strings preprocess(const std::string& prefix, const Strings& more = {}) const {
    Strings words{"preprocess", "--output_prefix=" + at(prefix),
                  "--tokenizer_model=" + (root() / "tokenizer.model").string(), "--text_document=paragraph",
                  "--workers=1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void expect_same(const std::string& a, const std::string& b) const {
    for (const char* extension : {".bin", ".idx", ".json"}) {
      EXPECT_EQ(read_text_file(at(a) + "_text_document" + extension),
                read_text_file(at(b) + "_text_document" + extension))
          << a << " " << b << extension;
    }
  }
  /// Writes 14 MB in two files: several work units each, of which one takes a second.
  Strings corpus() const {
    const std::string shakespeare = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
    std::string text;
    for (int i = 0; i < 9; ++i) text += str("\n\nCopy ", i, "\n\n", shakespeare);
    write_file_atomic(folder_ / "a.txt", text);
    write_file_atomic(folder_ / "b.txt", text.substr(2 * (text.size() / 3)));
    return {at("a.txt"), at("b.txt")};
  }
  /// Writes 9 MB in 40 files, each of which is one work unit.
  Strings many_files() const {
    const std::string shakespeare = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
    Strings names;
    for (std::size_t i = 0; i < 40; ++i) {
      names.push_back(at(str("text_", i, ".txt")));
      const std::size_t part_size = shakespeare.size() / 5;
      write_file_atomic(names.back(), str("File ", i, "\n\n", shakespeare.substr(i % 5 * part_size, part_size)));
    }
    return names;
  }
  void remove_dataset(const std::string& prefix) const {
    for (const char* key : {"text", "other"})
      for (const char* extension : {".bin", ".idx", ".json"})
        std::filesystem::remove(at(prefix) + "_" + key + "_document" + extension);
  }
  std::size_t parts(const std::string& prefix) const {
    std::size_t found = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(at(prefix) + ".parts", none))
      found += entry.path().extension() == ".part";
    return found;
  }
  /// Waits until a running preprocessing has finished `wanted` parts.
  void wait_for_parts(const std::string& prefix, std::size_t wanted) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (parts(prefix) < wanted) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "no progress";
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  /// Runs each rank in its own folder, where relative paths refer to different files.
  Outcome run_in_folders(const Strings& folders, const Strings& args) const {
    Strings launcher = mpirun(1), all = args;
    launcher.insert(launcher.end(), {"--wdir", folders.at(0)});
    all.insert(all.end(), {":", "-n", "1", "--wdir", folders.at(1), test::Program::path()});
    all.insert(all.end(), args.begin(), args.end());
    return test::Program(all, root() / "process", 0, launcher).wait();
  }
};

TEST_F(PreprocessOnRanksTest, OutputIsBitwiseIdenticalToOneProcess) {
  const Strings input = corpus();
  run_ok(preprocess("one", input));
  const Outcome outcome = run_on(3, preprocess("three", input));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "three_text_document: ");
  expect_same("one", "three");
  EXPECT_FALSE(std::filesystem::exists(at("three.parts")));
  EXPECT_EQ(leftovers(folder_), Strings{});
}

/// First one rank is killed, which ends all; then both ranks and their launcher, as if the host had failed.
TEST_F(PreprocessOnRanksTest, ContinuesAfterKill) {
  const Strings input = many_files();
  run_ok(preprocess("one", input));
  for (const bool whole_job : {false, true}) {
    const std::size_t before = parts("killed");
    test::Program program(preprocess("killed", input), root() / "process", 0, mpirun(2));
    wait_for_parts("killed", before + 3);
    const pid_t first = process_of(0, "killed"), second = process_of(1, "killed");
    ::kill(second, SIGKILL);
    if (whole_job) {
      ::kill(first, SIGKILL);
      program.signal(SIGKILL);
    }
    EXPECT_NE(program.wait().code, 0);
    for (const pid_t rank : {first, second})
      while (::kill(rank, 0) == 0 && contains_string(str("/proc/", rank, "/cmdline"), at("killed")))
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LT(parts("killed"), input.size()) << "killed too late for this test";
    EXPECT_FALSE(std::filesystem::exists(at("killed_text_document.bin")));
  }
  // Bytes after the end of all tokens are truncated.
  const Path joined = at("killed.parts/text.bin");
  EXPECT_TRUE(std::filesystem::exists(joined));
  std::filesystem::resize_file(joined, std::uintmax_t{20} << 20);
  const std::string out = run_ok(preprocess("killed", input));  // One process continues the work of two ranks.
  EXPECT_CONTAINS(out, " of 40 parts already exist");
  expect_same("one", "killed");
  EXPECT_FALSE(std::filesystem::exists(at("killed.parts")));
}

/// The run is killed at each write to the output token files, on either rank. The other ranks already know of the unit
/// and have assigned offsets after it, and its tokens for one of the keys may be written already.
TEST_F(PreprocessOnRanksTest, OutputIsBitwiseIdenticalWhenKilledAtAnyWrite) {
  const std::string shakespeare = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
  Strings input;
  for (std::size_t i = 0; i < 6; ++i) {
    std::string lines;
    for (std::size_t at = 0; at < 300'000; at += 1'000)
      lines += nlohmann::json{{"text", shakespeare.substr(i * 50'000 + at, 1'000)},
                              {"other", shakespeare.substr(2 * at, 1'000)}}
                   .dump() +
               "\n";
    input.push_back(at(str(i, ".jsonl")));
    write_file_atomic(input.back(), lines);
  }
  input.push_back("--json_keys=text,other");
  run_ok(preprocess("one", input));
  int killed = 0;
  for (const int rank : {0, 1}) {
    for (int number = 0; number < 3; ++number) {
      remove_dataset("killed");
      write_file_atomic(folder_ / "counts", std::string(3 * sizeof(u64), '\0'));
      Strings launcher{"env",
                       "LD_PRELOAD=" + (test::binary_folder() / "tests/libmcpp_faulty_disk.so").string(),
                       "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
                       "FAULTY_DISK_FOLDER=" + at("killed.parts"),
                       "FAULTY_DISK_COUNTS=" + at("counts"),
                       "FAULTY_DISK=signal",
                       str("FAULTY_DISK_AFTER=", number),
                       str("FAULTY_DISK_SIGNAL=", SIGKILL),
                       str("FAULTY_DISK_RANK=", rank)};
      for (const std::string& word : mpirun(2)) launcher.push_back(word);
      const bool ended = test::Program(preprocess("killed", input), root() / "process", 0, launcher).wait().code == 0;
      EXPECT_EQ(std::filesystem::exists(at("killed_text_document.bin")), ended);
      if (ended) continue;  // The other rank was faster and left this one fewer writes.
      ++killed;
      const Outcome outcome = run_on(1 + number, preprocess("killed", input));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      expect_same("one", "killed");
      EXPECT_EQ(read_text_file(at("one_other_document.bin")), read_text_file(at("killed_other_document.bin")));
    }
  }
  EXPECT_GE(killed, 3);
}

/// The run is killed while it writes parts, joins them or removes them.
TEST_F(PreprocessOnRanksTest, OutputIsBitwiseIdenticalWhenKilledAtAnyTime) {
  const Strings input{at("text.txt"), at("rest.txt")};
  const std::string shakespeare = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
  write_file_atomic(input[0], shakespeare.substr(0, shakespeare.size() / 2));
  write_file_atomic(input[1], shakespeare.substr(shakespeare.size() / 2));
  run_ok(preprocess("one", input));
  int code = -1, starts = 0;
  for (; code != 0; ++starts) {
    ASSERT_LT(starts, 40);
    test::Program program(preprocess("killed", input), root() / "process", 0, mpirun(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + 100 * starts));
    if (const pid_t rank = find_process(starts % 2, "killed"); rank > 0) ::kill(rank, SIGKILL);
    code = program.wait().code;
  }
  expect_same("one", "killed");
  EXPECT_FALSE(std::filesystem::exists(at("killed.parts")));
  EXPECT_FALSE(std::filesystem::exists(at("killed.parts.done")));
}

TEST_F(PreprocessOnRanksTest, NamesFoldersAndFilesThatRanksDoNotShare) {
  const std::string text = read_text_file(root() / "train.txt");
  const Strings folders{at("a"), at("b")};
  for (const std::string& folder : folders) std::filesystem::create_directories(folder);
  for (int i = 0; i < 8; ++i) write_file_atomic(folder_ / "a" / str(i, ".txt"), text);
  const auto error_of_separate_folders = [&](const std::string& prefix) {
    Strings args = preprocess("", {"--input=*.txt"});
    args[1] = "--output_prefix=" + prefix;
    const Outcome outcome = run_in_folders(folders, args);
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    return outcome.err;
  };
  EXPECT_CONTAINS(error_of_separate_folders("out"),
                  "out.parts: does not exist on this rank; all ranks must see the same folder");
  EXPECT_CONTAINS(error_of_separate_folders(at("out")),
                  ".txt: does not exist on this rank; all ranks must see the same files");
  // A file with other contents is not mistaken for the file of the other ranks.
  for (int i = 0; i < 8; ++i) write_file_atomic(folder_ / "b" / str(i, ".txt"), text + " ");
  EXPECT_CONTAINS(error_of_separate_folders(at("out")), ".txt: has changed since the work was distributed");
  EXPECT_FALSE(std::filesystem::exists(at("out_text_document.bin")));
}

TEST_F(PreprocessOnRanksTest, KeepsPartsWhenDiskIsFull) {
  const Strings input = many_files();
  run_ok(preprocess("one", input));
  const i64 bytes = static_cast<i64>(std::filesystem::file_size(at("one_text_document.bin")));
  for (const i64 file_limit : {bytes / 2, bytes - 1}) {
    SCOPED_TRACE(file_limit);
    remove_dataset("full");
    const Outcome full =
        test::Program(preprocess("full", plus(input, "--parts")), root() / "process", file_limit).wait();
    EXPECT_EQ(full.code, 2) << full.err;
    EXPECT_CONTAINS(full.err, "full.parts/text.bin: cannot be written: ");
    EXPECT_FALSE(std::filesystem::exists(at("full_text_document.bin")));
    const std::size_t finished_parts = parts("full");
    EXPECT_GE(finished_parts, 15u);
    const Outcome later = run_on(2, preprocess("full", input));
    ASSERT_EQ(later.code, 0) << later.err;
    EXPECT_CONTAINS(later.out, str(finished_parts, " of 40 parts already exist"));
    expect_same("one", "full");
  }
}

TEST_F(PreprocessOnRanksTest, OneProcessKeepsPartsOnRequest) {
  const Strings input{(root() / "train.txt").string()};
  run_ok(preprocess("one", input));
  run_ok(preprocess("parts", plus(input, "--parts")));
  expect_same("one", "parts");
}

TEST_F(PreprocessOnRanksTest, AllRanksFailAndNameBadLine) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += nlohmann::json{{"text", str("line ", i)}}.dump() + "\n";
  write_file_atomic(folder_ / "good.jsonl", lines);
  write_file_atomic(folder_ / "bad.jsonl", lines + "{\"text\": 3}\n" + lines);
  const Outcome outcome = run_on(3, preprocess("d", {at("good.jsonl"), at("bad.jsonl")}));
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "bad.jsonl:101: \"text\" is not a string");
  EXPECT_FALSE(std::filesystem::exists(at("d_text_document.bin")));
  // After the input is fixed, the part of the other file is reused.
  write_file_atomic(folder_ / "bad.jsonl", lines + lines);
  const Outcome fixed = run_on(2, preprocess("d", {at("good.jsonl"), at("bad.jsonl")}));
  EXPECT_EQ(fixed.code, 0) << fixed.err;
  run_ok(preprocess("one", {at("good.jsonl"), at("bad.jsonl")}));
  expect_same("one", "d");

  const Outcome absent = run_on(2, preprocess("e", {at("absent.txt")}));
  EXPECT_EQ(absent.code, 2);
  EXPECT_CONTAINS(absent.err, "absent.txt");
  write_file_atomic(folder_ / "empty.txt", "\n\n");
  const Outcome empty = run_on(2, preprocess("f", {at("empty.txt")}));
  EXPECT_EQ(empty.code, 2);
  EXPECT_CONTAINS(empty.err, "empty.txt: the input has no text for");
}

TEST_F(PreprocessOnRanksTest, RejectsPartsMadeWithDifferentOptions) {
  write_file_atomic(folder_ / "bad.jsonl", "{\"text\": \"x\"}\n{}\n");
  EXPECT_EQ(run(preprocess("d", {at("bad.jsonl"), "--parts"})).code, 2);
  ASSERT_TRUE(std::filesystem::exists(at("d.parts")));
  const Outcome other = run(preprocess("d", {at("bad.jsonl"), "--skip_malformed"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_CONTAINS(other.err, "made with a different tokenizer or different options");
  std::filesystem::remove_all(at("d.parts"));
  run_ok(preprocess("d", {at("bad.jsonl"), "--skip_malformed"}));
}

}  // namespace
}  // namespace mcpp
