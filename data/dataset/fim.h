// Fill in the middle (FIM): rearranges documents so that a model learns to predict a middle from the text before and
// after it. Follows Megatron-LM's GPTFIMDataset.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "data/config.h"
#include "data/dataset/dataset.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Rearrangement of the documents of samples. Const methods are thread-safe.
///
/// A document is decoded and divided at two random characters into prefix, middle and suffix, which are encoded
/// separately and joined as <prefix> prefix <suffix> suffix <middle> middle (PSM), or as <prefix> <suffix> suffix
/// <middle> prefix middle (SPM). As in Megatron-LM, tokens that decode to nothing are lost, and so is the end of a
/// document that directly follows another one.
class FimTransform {
 public:
  /// Opens data.tokenizer_model. Throws BadInput, naming the key, if the tokenizer lacks one of the tokens of
  /// data.fim_*.
  explicit FimTransform(const DataConfig& config);

  /// Rearranges the documents in `tokens`. The random choices depend on `key` and `sample` alone. Tokens that no longer
  /// fit are dropped. If the documents become shorter, fills up with the pad token and sets these elements of
  /// `targets`, [tokens] or empty, to 0.
  void apply(u64 key, u64 sample, std::span<i32> tokens, std::span<u8> targets) const;

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  class Draws;
  using Tokens = std::vector<i32>;

  i32 token_of(const char* key, const std::string& piece) const;
  void append_document(std::span<const i32> document, Draws& draws, Tokens& out) const;
  void append_rearranged(std::span<const i32> tokens, double rate, Draws& draws, Tokens& out) const;

  Tokenizer tokenizer_;
  double rate_, spm_rate_, fragment_rate_;
  std::string no_prefix_;
  i32 prefix_, middle_, suffix_, pad_, eod_;
  i32 split_;  // -1 = documents are not split into fragments
};

/// Dataset with rearranged documents.
class FimDataset : public Dataset {
 public:
  /// `key` identifies the samples of `dataset` among all samples that the transform is applied to.
  FimDataset(std::unique_ptr<Dataset> dataset, std::shared_ptr<const FimTransform> transform, u64 key)
      : dataset_(std::move(dataset)), transform_(std::move(transform)), key_(key) {}

  i64 size() const override { return dataset_->size(); }
  i64 seq_length() const override { return dataset_->seq_length(); }
  void read(i64 sample, std::span<i32> tokens, std::span<u8> targets) const override;
  SampleOrigin origin(i64 sample) const override;

 private:
  std::unique_ptr<Dataset> dataset_;
  std::shared_ptr<const FimTransform> transform_;
  u64 key_;
};

}  // namespace mcpp
