// Configuration of datasets, tokenizer and document rules. Keys have the names of Megatron-LM.
#pragma once
#include <string>
#include <vector>

#include "base/fields.h"

namespace mcpp {

struct DataConfig {
  std::vector<std::string> data_path;
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string data_args_path;
  std::string per_split_data_args_path;
  std::string split = "969,30,1";
  bool multiple_validation_sets = false;
  bool full_validation = false;
  bool mock_data = false;
  std::string data_cache_path;
  std::string tokenizer_model;
  i64 prefetch_batches = 2;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  i64 eod_token = -1;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("data_path", self.data_path,
          "dataset prefixes (without .bin/.idx), each optionally preceded by its weight: [\"0.3\", \"a\", \"0.7\", "
          "\"b\"]; a weight \"0.8:0.2\" changes linearly from 0.8 to 0.2 during the training or stage");
    visit("train_data_path", self.train_data_path, "datasets for training only; excludes data_path and split");
    visit("valid_data_path", self.valid_data_path, "datasets for validation only");
    visit("test_data_path", self.test_data_path, "datasets for testing only");
    visit("data_args_path", self.data_args_path,
          "text file with the value of data_path, as words separated by whitespace");
    visit("per_split_data_args_path", self.per_split_data_args_path,
          "JSON file with train_data_path, valid_data_path and test_data_path as its members train, valid and test");
    visit("split", self.split, "proportions of the documents of data_path for training, validation and test");
    visit("multiple_validation_sets", self.multiple_validation_sets,
          "compute a separate loss for each dataset of valid_data_path, or for the part that split holds out of each "
          "dataset of data_path, instead of one for their blend");
    visit("full_validation", self.full_validation,
          "each evaluation reads all validation data once, instead of training.eval_iters batches");
    visit("mock_data", self.mock_data,
          "random tokens instead of datasets, for speed measurements; identical in every run and layout");
    visit("data_cache_path", self.data_cache_path, "folder of the sample indices; empty = cache/ next to the dataset");
    visit(
        "tokenizer_model", self.tokenizer_model,
        "tokenizer file: sentencepiece model, tokenizer.json, vocab.json with merges.txt next to it, or tiktoken rank "
        "list; determines vocabulary size and <eod>");
    visit("prefetch_batches", self.prefetch_batches, "number of batches that a thread prefetches; 0 = read on demand",
          between(0, 64));
    visit("reset_position_ids", self.reset_position_ids,
          "restart positions at the beginning of each document of a packed sample");
    visit("reset_attention_mask", self.reset_attention_mask, "limit attention to the document of each token");
    visit("eod_mask_loss", self.eod_mask_loss, "exclude the token after the end of a document from the loss");
    visit("eod_token", self.eod_token,
          "id of the token that ends documents, for reset_position_ids, reset_attention_mask and eod_mask_loss; -1 = "
          "from tokenizer_model or the dataset's .json file",
          at_least(-1));
  }

  /// Returns true if training data are configured.
  bool has_data() const { return mock_data || !data_path.empty() || !train_data_path.empty(); }
  /// Returns true if samples are searched for the beginnings of documents.
  bool has_document_starts() const { return reset_position_ids || reset_attention_mask; }

  /// Returns every violated rule between fields, as "data.key: problem and allowed values".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
