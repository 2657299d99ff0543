// Trained model for the commands evaluate and generate: weights from a checkpoint, in a layout over ranks that the
// command line sets independently of the training layout.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "checkpoint/load/reader.h"
#include "data/dataset/batch.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/resume/weight_source.h"
#include "megatron_cpp/setup/initialize.h"
#include "model/gpt_model.h"

namespace mcpp {

/// Options shared by commands that load a model.
struct InferenceOptions {
  std::string load;
  WeightSource weights = WeightSource::Model;
  std::string tokenizer_model;
  std::string precision;
  DeviceType device = DeviceType::Cpu;
  i64 num_threads = 0;
  ParallelConfig parallel;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("load", self.load, "a checkpoint, or a folder of checkpoints whose newest intact one is used");
    visit("weights", self.weights, kWeightsHelp);
    visit("tokenizer_model", self.tokenizer_model,
          "tokenizer file; empty = the tokenizer saved next to the checkpoints");
    visit("precision", self.precision, "fp32, bf16 or fp16; empty = as in training");
    visit("device", self.device, "device to run on, which may differ from the training device");
    visit("num_threads", self.num_threads, "threads on the CPU; 0 = all usable cores", between(0, 4096));
    // Keys of the configuration that have an effect without training.
    const auto visit_parallel = [&](std::string_view name, auto& member, std::string_view help,
                                    Constraint constraint = {}) {
      if (std::ranges::count(kParallelKeys, name) > 0) visit(str("parallel.", name), member, help, constraint);
    };
    ParallelConfig::fields(self.parallel, visit_parallel);
  }

  static constexpr std::array<std::string_view, 14> kParallelKeys{"tensor_model_parallel_size",
                                                                  "context_parallel_size",
                                                                  "cp_comm_type",
                                                                  "hierarchical_context_parallel_sizes",
                                                                  "expert_model_parallel_size",
                                                                  "expert_tensor_parallel_size",
                                                                  "moe_token_dispatcher_type",
                                                                  "moe_dispatch_node_ranks",
                                                                  "pipeline_model_parallel_size",
                                                                  "decoder_first_pipeline_num_layers",
                                                                  "decoder_last_pipeline_num_layers",
                                                                  "pipeline_model_parallel_layout",
                                                                  "distributed_backend",
                                                                  "distributed_timeout_minutes"};
};

class InferenceModel {
 public:
  /// Loads the model. Collective over `world`.
  InferenceModel(const InferenceOptions& options, const World& world, const Log& log);

  /// Returns this rank's pipeline stage.
  GPTModel& model() { return *model_; }
  ParallelState& parallel() { return session_->parallel; }
  const Config& config() const { return config_; }
  const Path& checkpoint() const { return checkpoint_; }
  /// Returns the tokenizer. Throws BadInput if there is none, or if it differs from the tokenizer that the model was
  /// trained with.
  Tokenizer tokenizer() const;
  /// Returns the special tokens defined by an imported model; if it defines none, the special tokens of its tokenizer
  /// apply.
  const SpecialTokens& special_tokens() const { return special_tokens_; }
  /// Returns the document rules that the model was trained with. Throws BadInput if they are unknown.
  DocumentRules document_rules() const { return mcpp::document_rules(config_.data); }
  /// Returns the checksum of the tokenizer that the model was trained with or, if the checkpoint does not record a
  /// checksum, the checksum of tokenizer(); "" if there is no tokenizer.
  std::string tokenizer_checksum() const;

 private:
  Path tokenizer_path() const;  ///< "" if there is none
  std::optional<Damage> make_model(CheckpointReader& reader);

  InferenceOptions options_;
  World world_;
  Path checkpoint_;
  Config config_;
  std::string tokenizer_checksum_;  // checksum of the tokenizer used in training; empty = unknown
  SpecialTokens special_tokens_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<GPTModel> model_;
};

// Parsing of lines of JSON Lines files that users write.

/// Returns the object of a line. Throws BadInput if the line is malformed, is not an object, or has a duplicate key.
nlohmann::json parse_json_line(std::string_view line);
/// Returns the string member `key`. Throws BadInput if there is none.
std::string text_member(const nlohmann::json& object, const char* key);

}  // namespace mcpp
