// Datasets and corpora in an object store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset/dataset_info.h"
#include "data/dataset/datasets.h"
#include "data/preprocess/distributed/merge.h"
#include "data/preprocess/indexed_writer.h"
#include "data/preprocess/input_files.h"
#include "data/preprocess/verify.h"
#include "tests/data/preprocess_fixture.h"
#include "tests/support/s3_environment.h"

namespace mcpp {
namespace {

using test::S3Fault;
using test::S3Request;
using testing::HasSubstr;

class ObjectStoreDataTest : public test::PreprocessFixture {
 protected:
  /// Preprocesses the text to a local dataset and stores its files.
  void make_dataset() {
    PreprocessOptions paragraphs = options({source().string()});
    paragraphs.text_document = TextDocument::Paragraph;
    run_preprocess(paragraphs, Log(1));
    store_.store_files(local_);
  }
  static std::vector<std::vector<i32>> all_sequences(const IndexedDataset& dataset) {
    std::vector<std::vector<i32>> sequences;
    for (i64 i = 0; i < dataset.num_sequences(); ++i) {
      sequences.emplace_back(static_cast<std::size_t>(dataset.length(i)));
      dataset.read(i, 0, sequences.back());
    }
    return sequences;
  }
  std::string open_error(ExitCode code = ExitCode::BadInput) const {
    return test::error_with(code, [&] { IndexedDataset dataset(remote_); });
  }

  test::S3Environment store_;
  const Path local_ = out_ / "d_text_document", remote_ = "s3://bucket/data/d_text_document";
};

TEST_F(ObjectStoreDataTest, ReadsTokensOfLocalDataset) {
  make_dataset();
  const IndexedDataset local(local_), remote(remote_);
  EXPECT_EQ(all_sequences(remote), all_sequences(local));
  EXPECT_EQ(remote.bin_bytes(), local.bin_bytes());
  EXPECT_EQ(remote.index_checksum(), local.index_checksum());
  EXPECT_EQ(dataset_identity(remote_), dataset_identity(local_));
  EXPECT_EQ(read_dataset_info(remote_)->tokens, read_dataset_info(local_)->tokens);
  EXPECT_FALSE(read_dataset_info("s3://bucket/data/other").has_value());
  EXPECT_EQ(verify_dataset(remote_, 0, Log(1)).documents, verify_dataset(local_, 0, Log(1)).documents);
}

TEST_F(ObjectStoreDataTest, DatasetsShareConnections) {
  make_dataset();
  auto connections = std::make_unique<ObjectConnections>();
  const std::weak_ptr<S3Transfer> transfer = connections->transfer();
  const IndexedDataset first(remote_, *connections), second(remote_, *connections), alone(remote_);
  EXPECT_EQ(transfer.use_count(), 1 + 2) << "the connections and two datasets";
  connections.reset();
  EXPECT_EQ(all_sequences(first), all_sequences(alone));
}

/// The identity of a large dataset depends on 256 blocks of 16 KiB.
TEST_F(ObjectStoreDataTest, IdentityDownloadsOnlySampledBytes) {
  IndexedDatasetWriter writer(local_, 1 << 22);
  constexpr i32 kDocuments = 2'000, kTokens = 1'000;
  for (i32 d = 0; d < kDocuments; ++d) writer.add_document(std::vector<i32>(kTokens, d));
  writer.finish();
  store_.store_files(local_);
  EXPECT_EQ(dataset_identity(remote_), dataset_identity(local_));
  i64 bytes = 0;
  for (const S3Request& request : store_.server().requests()) {
    if (!request.path.ends_with(".bin") || !request.headers.contains("range")) continue;
    const std::string range = request.headers.at("range");
    const std::size_t dash = range.find('-');
    bytes += std::stoll(range.substr(dash + 1)) - std::stoll(range.substr(range.find('=') + 1, dash)) + 1;
  }
  EXPECT_EQ(bytes, 256 << 14);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store_.cache()))
    EXPECT_FALSE(entry.path().filename().string().starts_with("block-")) << entry.path();
}

TEST_F(ObjectStoreDataTest, DrawsSamplesOfLocalDataset) {
  make_dataset();
  const auto samples = [&](const Path& prefix) {
    DataConfig config;
    config.data_path = {prefix.string()};
    const Datasets datasets = build_train_valid_test_datasets(config, 32, 1, {200, 10, 0}, Log(1));
    std::vector<std::vector<i32>> all;
    for (i64 i = 0; i < datasets.train->size(); ++i) datasets.train->at(i, all.emplace_back(33));
    return all;
  };
  EXPECT_EQ(samples(remote_), samples(local_));
}

TEST_F(ObjectStoreDataTest, ReadsDespiteFailures) {
  make_dataset();
  store_.server().set_faults([count = 0](const S3Request& request) mutable {
    constexpr int kPeriod = 2;
    return request.method == "GET" && ++count % kPeriod == 0 ? S3Fault{.truncated_to = 1000} : S3Fault();
  });
  EXPECT_EQ(all_sequences(IndexedDataset(remote_)), all_sequences(IndexedDataset(local_)));
}

TEST_F(ObjectStoreDataTest, RejectsMissingAndDamagedDatasets) {
  EXPECT_THAT(open_error(), HasSubstr("there is no file s3://bucket/data/d_text_document.idx"));
  make_dataset();
  const std::string idx = read_text_file(idx_path(local_));
  store_.server().set_object("/bucket/data/d_text_document.idx", idx.substr(0, 100));
  EXPECT_THAT(open_error(),
              testing::AllOf(HasSubstr("dataset s3://bucket/data/d_text_document: "), HasSubstr("truncated")));
  store_.server().set_object("/bucket/data/d_text_document.idx", idx);
  store_.server().set_object("/bucket/data/d_text_document.bin", "abc");
  EXPECT_THAT(open_error(), HasSubstr("s3://bucket/data/d_text_document.bin has only 3 bytes"));
  store_.server().stop();
  EXPECT_THAT(open_error(ExitCode::PeerLost), HasSubstr("failed 3 times"));
}

TEST_F(ObjectStoreDataTest, ReportsDatasetThatIsReplacedDuringRun) {
  make_dataset();
  const IndexedDataset remote(remote_);
  store_.server().set_object("/bucket/data/d_text_document.bin", std::string(remote.bin_bytes(), 'x'));
  EXPECT_THAT(test::input_error([&] { all_sequences(remote); }), HasSubstr("was replaced while it was in use"));
}

TEST_F(ObjectStoreDataTest, PreprocessesObjects) {
  const std::string text = read_text_file(source());
  store_.server().set_object("/bucket/text/a.txt", text.substr(0, 300'000));
  store_.server().set_object("/bucket/text/b.txt", text.substr(300'000));
  store_.server().set_object("/bucket/text/deep/c.txt", "not matched");
  store_.server().set_object("/bucket/text/a.jsonl", "{\"text\": \"not matched\"}\n");
  const std::string a = file("a.txt", text.substr(0, 300'000)), b = file("b.txt", text.substr(300'000));
  run_preprocess(options({a, b}, "local"), Log(1));
  run_preprocess(options({"s3://bucket/text/*.txt"}, "remote"), Log(1));
  for (const char* suffix : {"_text_document.bin", "_text_document.idx", "_text_document.json"})
    EXPECT_EQ(read_text_file(out_ / (std::string("remote") + suffix)),
              read_text_file(out_ / (std::string("local") + suffix)));
  EXPECT_THAT(test::input_error([] { expand_patterns({"s3://bucket/text/*.gz"}); }), HasSubstr("no object matches"));
  EXPECT_THAT(test::input_error([] { expand_patterns({"s3://bucket/text/x.txt"}); }), HasSubstr("does not exist"));
}

TEST_F(ObjectStoreDataTest, DividesObjectsIntoUnitsOfFiles) {
  const std::string text = read_text_file(source());
  store_.server().set_object("/bucket/text/a.txt", text);
  PreprocessOptions local = options({source().string()}, "local"),
                    remote = options({"s3://bucket/text/a.txt"}, "remote");
  local.parts = remote.parts = true;
  run_preprocess(local, Log(1));
  run_preprocess(remote, Log(1));
  EXPECT_EQ(read_text_file(out_ / "remote_text_document.bin"), read_text_file(out_ / "local_text_document.bin"));
}

}  // namespace
}  // namespace mcpp
