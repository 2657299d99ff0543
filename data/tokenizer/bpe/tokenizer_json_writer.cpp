#include "base/json.h"
#include "data/tokenizer/bpe/tokenizer_json.h"

namespace mcpp {

OrderedJson added_tokens_json(const std::vector<AddedToken>& tokens) {
  auto list = OrderedJson::array();
  for (const AddedToken& token : tokens) {
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", token.single_word},
                    {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip},
                    {"normalized", token.normalized},
                    {"special", token.special}});
  }
  return list;
}

namespace {

OrderedJson byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
}

OrderedJson pre_tokenizer(const BpeDescription& description) {
  auto steps = OrderedJson::array();
  for (const PreTokenizerStep& step : description.pre_tokenizer) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", std::get<SplitStep>(step).pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(byte_level());
  return {{"type", "Sequence"}, {"pretokenizers", steps}};
}

OrderedJson model(const BpeDescription& description) {
  auto vocab = OrderedJson::object();
  for (std::size_t id = 0; id < description.pieces.size(); ++id) {
    // Not vocab[...], which would search all elements.
    if (!description.pieces[id].empty())
      vocab.get_ref<OrderedJson::object_t&>().emplace_back(description.pieces[id], id);
  }
  auto merges = OrderedJson::array();
  for (const Merge& merge : description.merges)
    merges.push_back({description.pieces[merge.left], description.pieces[merge.right]});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", description.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string to_tokenizer_json(const BpeDescription& description) {
  const OrderedJson json{{"version", "1.0"},
                         {"truncation", nullptr},
                         {"padding", nullptr},
                         {"added_tokens", added_tokens_json(description.added)},
                         {"normalizer", description.normalizer.empty() ? OrderedJson() : OrderedJson{{"type", "NFC"}}},
                         {"pre_tokenizer", pre_tokenizer(description)},
                         {"post_processor", nullptr},
                         {"decoder", byte_level()},
                         {"model", model(description)}};
  return json.dump(1) + "\n";
}

}  // namespace mcpp
