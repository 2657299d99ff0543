// Fixture for preprocessing files that a test writes, with a small tokenizer.
#pragma once
#include <gtest/gtest.h>
#include <zlib.h>

#include <memory>

#include "data/preprocess/preprocess.h"
#include "data/preprocess/training/tokenizer_training.h"
#include "tests/data/data_golden.h"

namespace mcpp::test {

/// Fixture with a tokenizer that is trained once per suite. Each test has a separate folder for input and output.
class PreprocessFixture : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    suite_ = std::make_unique<ScratchFolder>();
    TokenizerOptions options;
    options.input = {source().string()};
    options.output = model();
    options.vocab_size = 600;
    train_tokenizer(options, Log(1));
  }
  static void TearDownTestSuite() { suite_.reset(); }

  static Path source() { return source_folder() / "data/tinyshakespeare.txt"; }
  static std::string model() { return (*suite_ / "tokenizer.model").string(); }

  std::string file(const std::string& name, const std::string& text) {
    write_file_atomic(out_ / name, text);
    return (out_ / name).string();
  }
  std::string gzip_file(const std::string& name, const std::string& text) {
    gzFile gzip = gzopen((out_ / name).c_str(), "wb");
    gzwrite(gzip, text.data(), static_cast<unsigned>(text.size()));
    gzclose(gzip);
    return (out_ / name).string();
  }
  PreprocessOptions options(std::vector<std::string> input, const std::string& prefix = "d") {
    PreprocessOptions result;
    result.input = std::move(input);
    result.output_prefix = (out_ / prefix).string();
    result.tokenizer_model = model();
    result.workers = 2;
    return result;
  }

  ScratchFolder out_;

 private:
  inline static std::unique_ptr<ScratchFolder> suite_;
};

}  // namespace mcpp::test
