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
  double fim_rate = 0;
  double fim_spm_rate = 0.5;
  std::string fim_split_sample;
  double fim_fragment_rate = 0.5;
  std::string fim_no_prefix;
  std::string fim_prefix_token = "<fim_prefix>";
  std::string fim_middle_token = "<fim_middle>";
  std::string fim_suffix_token = "<fim_suffix>";
  std::string fim_pad_token;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("data_path", self.data_path,
          "dataset prefixes (without .bin/.idx), each optionally preceded by its weight: [\"0.3\", \"a\", \"0.7\", "
          "\"b\"]; a weight \"0.8:0.2\" changes linearly from 0.8 to 0.2 during the run or stage");
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
          "id of the token that ends documents, for reset_position_ids, reset_attention_mask, eod_mask_loss and "
          "fim_rate; -1 = from tokenizer_model or the dataset's .json file",
          at_least(-1));
    visit("fim_rate", self.fim_rate,
          "probability that a document of a training sample is rearranged for fill in the middle; 0 = off",
          between(0, 1));
    visit("fim_spm_rate", self.fim_spm_rate,
          "probability that a rearranged document has the order suffix, prefix, middle instead of prefix, suffix, "
          "middle",
          between(0, 1));
    visit("fim_split_sample", self.fim_split_sample,
          "token that splits documents into fragments, such as the files of a repository, which are rearranged "
          "separately; empty = documents are not split");
    visit("fim_fragment_rate", self.fim_fragment_rate,
          "probability that a fragment of a document chosen by fim_rate is rearranged", between(0, 1));
    visit("fim_no_prefix", self.fim_no_prefix,
          "texts that begin with this prefix are not rearranged; empty = no exception");
    visit("fim_prefix_token", self.fim_prefix_token, "token before the prefix of a rearranged document");
    visit("fim_middle_token", self.fim_middle_token, "token before the middle of a rearranged document");
    visit("fim_suffix_token", self.fim_suffix_token, "token before the suffix of a rearranged document");
    visit("fim_pad_token", self.fim_pad_token,
          "token that fills up samples that became shorter, without a loss; empty = the token that ends documents");
  }

  /// Returns true if training data are configured.
  bool has_data() const { return mock_data || !data_path.empty() || !train_data_path.empty(); }
  /// Returns true if samples are searched for the beginnings of documents.
  bool has_document_starts() const { return reset_position_ids || reset_attention_mask; }
  /// Returns true if samples depend on the token that ends documents.
  bool reads_eod() const { return has_document_starts() || eod_mask_loss || fim_rate > 0; }

  /// Returns every violated rule between fields, as "data.key: problem and allowed values".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
