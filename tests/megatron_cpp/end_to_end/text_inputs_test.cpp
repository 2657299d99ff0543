// Text input of commands, and checks that it belongs to the model and the run.
#include <sys/stat.h>
#include <zlib.h>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class TextInputTest : public EndToEnd {
 protected:
  void write(const std::string& name, const std::string& content) const { write_file_atomic(folder_ / name, content); }
  void write_gzip(const std::string& name, const std::string& content) const {
    gzFile file = gzopen(at(name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
  }
  static std::string jsonl(const Strings& texts, const std::string& key = "text") {
    std::string lines;
    for (const std::string& text : texts) lines += nlohmann::json{{key, text}}.dump() + "\n";
    return lines;
  }
  nlohmann::json evaluation(const Strings& args) const {
    Strings words{"evaluate", "--load=" + at("run"), "--json"};
    words.insert(words.end(), args.begin(), args.end());
    return nlohmann::json::parse(run_ok(words));
  }
  static void expect_refused(const Outcome& outcome, const Strings& parts) {
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    for (const std::string& part : parts) EXPECT_CONTAINS(outcome.err, part);
  }
  void expect_refused(const Strings& args, const Strings& parts) const { expect_refused(run(args), parts); }
  Strings preprocess(const std::string& prefix, const Strings& input,
                     const std::string& tokenizer = "tokenizer.model") const {
    Strings words{"preprocess", "--output_prefix=" + at(prefix), "--tokenizer_model=" + (root() / tokenizer).string(),
                  "--text_document=paragraph"};
    words.insert(words.end(), input.begin(), input.end());
    return words;
  }
  /// Copies the dataset, or one made with a different tokenizer or text, to the prefix "data/copy".
  void copy_dataset(const std::string& from) const {
    std::filesystem::create_directories(folder_ / "data");
    for (const char* ending : {".bin", ".idx", ".json"})
      std::filesystem::copy_file(from + ending, at("data/copy") + ending,
                                 std::filesystem::copy_options::overwrite_existing);
  }
};

TEST_F(TextInputTest, EvaluateReadsSameFormatsAsPreprocess) {
  train("run");
  const std::string a = "First Citizen:\nBefore we proceed", b = "Speak, speak.", all = a + "\n\n" + b;
  write("a.txt", a), write("b.txt", b), write("all.txt", all);
  write("d.jsonl", jsonl({a, "", b})), write("body.jsonl", jsonl({a, b}, "body"));
  write_gzip("a.txt.gz", a), write_gzip("d.jsonl.gz", jsonl({a, b}));
  const nlohmann::json expected = evaluation({"--text=" + at("a.txt") + "," + at("b.txt")});
  EXPECT_EQ(expected["bytes"], a.size() + b.size());
  EXPECT_EQ(expected["words"], 7);
  for (const Strings& same :
       {Strings{"--text=" + at("[ab].txt")}, Strings{"--text=" + at("d.jsonl")}, Strings{"--text=" + at("d.jsonl.gz")},
        Strings{"--text=" + at("a.txt.gz") + "," + at("b.txt")},
        Strings{"--text=" + at("body.jsonl"), "--json_key=body"},
        Strings{"--text=" + at("all.txt"), "--text_document=paragraph"}}) {
    EXPECT_EQ(evaluation(same), expected) << same[0];
  }
  EXPECT_NE(evaluation({"--text=" + at("all.txt")}), expected) << "one document";
  // A dataset also has an eod after its last document.
  run_ok(preprocess("d", {at("all.txt")}));
  EXPECT_EQ(evaluation({"--data=" + at("d_text_document")})["tokens"], expected["tokens"].get<int>() + 1);

  expect_refused({"evaluate", "--load=" + at("run"), "--text=" + at("x*.txt")}, {"x*.txt: no file matches"});
  expect_refused({"evaluate", "--load=" + at("run"), "--text=" + at("d.jsonl"), "--json_key=body"},
                 {"d.jsonl:1: has no key \"body\""});
  write("empty.txt", "");
  expect_refused({"evaluate", "--load=" + at("run"), "--text=" + at("empty.txt")}, {"empty.txt: contains no text"});
}

TEST_F(TextInputTest, AcceptsSeveralFilesAndPatterns) {
  write("1.txt", "one\n\ntwo"), write("2.txt", "three"), write("3.md", "four");
  run_ok(preprocess("listed", {"--input=" + at("1.txt") + "," + at("2.txt")}));
  for (const Strings& same :
       {Strings{at("1.txt"), at("2.txt")}, Strings{at("[12].txt")}, Strings{"--input=" + at("?.txt")}}) {
    run_ok(preprocess("other", same));
    for (const char* ending : {".bin", ".idx", ".json"})
      EXPECT_EQ(read_text_file(at("other_text_document") + ending),
                read_text_file(at("listed_text_document") + ending));
  }
  write("[x].txt", "a name, not a pattern");
  run_ok(preprocess("odd", {at("[x].txt")}));
  expect_refused(preprocess("none", {at("*.csv")}), {"*.csv: no file matches"});

  std::filesystem::copy_file(root() / "train.txt", folder_ / "long_1.txt");
  std::filesystem::copy_file(root() / "held_out.txt", folder_ / "long_2.txt");
  run_ok({"tokenizer", "train", at("long_1.txt"), at("long_2.txt"), "--output=" + at("a.model"), "--vocab_size=400"});
  const std::string out =
      run_ok({"tokenizer", "train", "--input=" + at("long_*.txt"), "--output=" + at("b.model"), "--vocab_size=400"});
  EXPECT_EQ(read_text_file(at("a.model")), read_text_file(at("b.model")));
  EXPECT_EQ(out.find('\033'), std::string::npos) << "only terminals get a live line";
}

TEST_F(TextInputTest, TimesOutOnPipeWithoutWriter) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  test::Program preprocessing(preprocess("d", {at("pipe")}), folder_ / "preprocessing");
  test::Program training({"tokenizer", "train", at("pipe"), "--output=" + at("x.model")}, folder_ / "training");
  for (test::Program* waiting : {&preprocessing, &training})
    expect_refused(waiting->wait(), {"pipe is a pipe without a writer for 10 seconds"});
  expect_refused({"pretrain", at("pipe")}, {"pipe", "not a regular file"});
  expect_refused(pretrain("run", {"--data.tokenizer_model=" + at("pipe")}), {"pipe", "not a regular file"});
  // Process substitution: preprocess --input=<(zcat corpus.gz).
  write("script.sh",
        str(test::Program::path(), " preprocess --input=<(printf 'one\\n\\ntwo') --text_document=paragraph ",
            "--output_prefix=", at("piped"), " --tokenizer_model=", root().string(), "/tokenizer.model\n"));
  EXPECT_EQ(std::system(str("bash ", at("script.sh"), " > ", at("log")).c_str()), 0);
  EXPECT_CONTAINS(read_text_file(at("log")), "2 documents");
}

TEST_F(TextInputTest, RejectsDatasetOfDifferentTokenizer) {
  train("run");
  run_ok({"tokenizer", "train", (root() / "train.txt").string(), "--output=" + (root() / "other.model").string(),
          "--vocab_size=400", "--model_type=unigram"});
  run_ok(preprocess("other", {(root() / "held_out.txt").string()}, "other.model"));
  run_ok(preprocess("same", {(root() / "held_out.txt").string()}));
  evaluation({"--data=" + at("same_text_document")});
  expect_refused({"evaluate", "--load=" + at("run"), "--data=" + at("other_text_document")},
                 {"other_text_document.json", "a different tokenizer", "preprocess"});
  // If neither model nor configuration names a tokenizer, the datasets of a run must at least agree.
  const Strings mixed =
      pretrain("mixed", {"--data.tokenizer_model=", "--model.vocab_size=400",
                         "--data.data_path=0.5," + at("same_text_document") + ",0.5," + at("other_text_document")});
  expect_refused(mixed, {"other_text_document.json", "a different tokenizer than", "same_text_document"});
}

TEST_F(TextInputTest, RefusesToResumeWithDifferentText) {
  copy_dataset(dataset());
  const Strings half{"--data.data_path=" + at("data/copy"), "--training.exit_interval=4"};
  train("run", half);
  std::string text = read_text_file(root() / "train.txt");
  std::ranges::replace(text, 'e', 'o');  // the same length and paragraphs
  write("other.txt", text);
  run_ok(preprocess("other", {at("other.txt")}));
  copy_dataset(at("other_text_document"));
  const Strings resumed = pretrain("run", {half[0], "--training.exit_interval=8"});
  expect_refused(resumed, {"was trained on a different text", "data.data_path: " + at("data/copy"),
                           "in the checkpoint: ", "now: ", "--checkpoint.allow_changed_keys=data.data_path"});
  // A new modification time alone does not matter.
  copy_dataset(dataset());
  run_ok(resumed);
  // A new name does not matter either.
  for (const char* ending : {".bin", ".idx", ".json"})
    std::filesystem::copy_file(at("data/copy") + ending, at("data/moved") + ending);
  train("moved", {"--data.data_path=" + at("data/copy"), "--training.exit_interval=4"});
  train("moved", {"--data.data_path=" + at("data/moved")});
  train("whole", {"--data.data_path=" + at("data/copy")});
  expect_same_checkpoint("whole", "moved");
  copy_dataset(at("other_text_document"));
  const Outcome accepted = run(plus(pretrain("run", {half[0]}), "--checkpoint.allow_changed_keys=data.data_path"));
  EXPECT_EQ(accepted.code, 0) << accepted.err;
  EXPECT_CONTAINS(accepted.err, "data.data_path: " + at("data/copy") + " is a different text than the one trained on");
  EXPECT_EQ(losses("run", 12).size(), 12u);
  run_ok(pretrain("run", {half[0]}));  // the checkpoint now belongs to the new text
}

TEST_F(TextInputTest, NamesRankThatReadsDifferentText) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  copy_dataset(dataset());
  std::filesystem::rename(folder_ / "data", folder_ / "one");
  run_ok(preprocess("other", {(root() / "held_out.txt").string()}));
  copy_dataset(at("other_text_document"));
  std::filesystem::rename(folder_ / "data", folder_ / "two");
  const Strings same = pretrain("run", {"--data.data_path=copy", "--training.eval_iters=0"});
  Strings args = same;
  args.insert(args.end(), {":", "-n", "1", "-wdir", at("two"), test::Program::path()});
  args.insert(args.end(), same.begin(), same.end());
  Strings launcher = mpirun(1);
  launcher.insert(launcher.end(), {"-wdir", at("one")});
  const Outcome outcome = test::Program(args, root() / "process", 0, launcher).wait();
  EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
  EXPECT_CONTAINS(outcome.err, "rank 1 has a different dataset than rank 0 (copy: ");
}

TEST_F(TextInputTest, ShowMarksEndsOfDocuments) {
  const auto show = [&](const Strings& more) {
    Strings args{"data", "show", (root() / "run.toml").string(), "--checkpoint.save=x"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string text = run_ok(show({"--iteration=2"}));
  EXPECT_CONTAINS(text, "<eod>\n");
  for (const char* iteration : {"100000", "1000000000000", "9223372036854775807"})
    expect_refused(show({str("--iteration=", iteration)}), {str("--iteration=", iteration), "samples"});
  expect_refused(show({"--iteration=0"}), {"--iteration, counted from 1"});

  write("plain.txt", "one two three four five six\n\nseven eight nine ten eleven twelve\n\nthirteen fourteen fifteen");
  run_ok(preprocess("plain", {at("plain.txt"), "--append_eod=false"}));
  EXPECT_CONTAINS(run_ok(show({"--sample=0", "--data.data_path=" + at("plain_text_document"), "--data.split=1",
                               "--training.eval_iters=0", "--model.seq_length=32"})),
                  "<end of document>\n");
}

}  // namespace
}  // namespace mcpp
