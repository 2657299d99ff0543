// Training that separates the documents of a sample.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class PackedDocumentsTest : public EndToEnd {
 protected:
  /// Returns the losses of a run with a low learning rate, so that layouts differ only by their order of
  /// summation.
  std::vector<double> losses_of(const std::string& name, const Strings& more, int ranks = 1) const {
    Strings args = pretrain(name, {"--model.num_layers=4", "--optimizer.lr=3e-4", "--training.train_iters=6"});
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = run_on(ranks, args);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return losses(name, 6);
  }
  static Strings with_document_keys(Strings more = {}) {
    for (const char* key : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"})
      more.push_back(str("--data.", key, "=true"));
    return more;
  }
  static void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1, 1e-5) << i;
  }
};

TEST_F(PackedDocumentsTest, HasSameLossOnEveryLayout) {
  for (const char* positions : {"learned_absolute", "rope"}) {
    const std::string position_type = str("--model.position_embedding_type=", positions);
    const std::vector<double> expected = losses_of(positions, with_document_keys({position_type}));
    const std::pair<const char*, Strings> layouts[]{
        {"tp", {"--parallel.tensor_model_parallel_size=4", "--parallel.sequence_parallel=true"}},
        // with intermediate stages
        {"pp", {"--parallel.pipeline_model_parallel_size=4", "--training.micro_batch_size=1"}},
        {"ring", {"--parallel.context_parallel_size=4"}},
        {"gathered", {"--parallel.context_parallel_size=2", "--parallel.cp_comm_type=all_gather"}},
        {"hierarchical",
         {"--parallel.context_parallel_size=4", "--parallel.cp_comm_type=a2a+p2p",
          "--parallel.hierarchical_context_parallel_sizes=2,2"}},
        {"context_in_stages",
         {"--parallel.context_parallel_size=2", "--parallel.cp_comm_type=a2a",
          "--parallel.pipeline_model_parallel_size=2"}},
        {"mixed", {"--parallel.tensor_model_parallel_size=2", "--training.recompute_granularity=full"}}};
    for (const auto& [name, layout] : layouts) {
      SCOPED_TRACE(name);
      Strings more = with_document_keys({position_type});
      more.insert(more.end(), layout.begin(), layout.end());
      expect_near(losses_of(str(positions, "_", name), more, 4), expected);
    }
  }
}

TEST_F(PackedDocumentsTest, EachKeyChangesLoss) {
  const std::vector<double> plain = losses_of("plain", {});
  for (const char* key : {"reset_position_ids", "reset_attention_mask", "eod_mask_loss"}) {
    const std::vector<double> found = losses_of(key, {str("--data.", key, "=true")});
    EXPECT_GT(std::abs(found.front() / plain.front() - 1), 1e-6) << key;
  }
}

TEST_F(PackedDocumentsTest, RequiresEodToken) {
  const Outcome mismatched = run(pretrain("x", with_document_keys({"--data.eod_token=7"})));
  EXPECT_EQ(mismatched.code, 2);
  EXPECT_CONTAINS(mismatched.err, "documents end with token");
  const Path info = dataset() + ".json";
  const std::string original = read_text_file(info);
  std::filesystem::remove(info);
  const Outcome unknown = run(
      pretrain("x", with_document_keys({"--data.tokenizer_model=", "--model.vocab_size=400", "--data.eod_token=-1"})));
  write_file_atomic(info, original);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_CONTAINS(unknown.err, "data.eod_token: is missing; set it or data.tokenizer_model");
}

}  // namespace
}  // namespace mcpp
