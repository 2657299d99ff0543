// A trained model as evaluate and generate use it: weights only, from a checkpoint.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load/reader.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "model/gpt_model.h"

namespace mcpp {

/// Options that commands which load a model share.
struct InferenceOptions {
  std::string load;
  std::string tokenizer_model;
  std::string precision;
  i64 num_threads = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "a checkpoint, or a folder of checkpoints: then its newest good one");
    visit("tokenizer_model", self.tokenizer_model, "sentencepiece model; empty = the one saved beside the checkpoints");
    visit("precision", self.precision, "fp32, bf16 or fp16; empty = as it was trained");
    visit("num_threads", self.num_threads, "threads on the CPU; 0 = all usable cores", between(0, 4096));
  }
};

class InferenceModel {
 public:
  InferenceModel(const InferenceOptions& options, const Log& log);

  GPTModel& model() { return *model_; }
  const Config& config() const { return config_; }
  const Path& checkpoint() const { return checkpoint_; }
  /// BadInput when there is none, or when it is not the one the model was trained with.
  Tokenizer tokenizer() const;
  /// Of the tokenizer that the model was trained with; where the checkpoint does not say, of the one that tokenizer()
  /// would give; "" when there is none.
  std::string tokenizer_checksum() const;

 private:
  Path tokenizer_path() const;  ///< "" when there is none
  std::optional<Damage> make_model(CheckpointReader& reader);

  InferenceOptions options_;
  std::unique_ptr<Communicator> self_;
  Path checkpoint_;
  Config config_;
  std::string tokenizer_checksum_;  // of the training; empty = unknown
  std::unique_ptr<Session> session_;
  std::unique_ptr<GPTModel> model_;
};

}  // namespace mcpp
