// Byte-level BPE training that reproduces the BpeTrainer of `tokenizers`: identical words and counts yield identical
// pieces and merges, including ties.
#pragma once
#include <string>
#include <vector>

#include "data/preprocess/training/training_text.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Trains on the given words. The pieces are the special tokens, the 256 bytes, and merged pieces up to `vocab_size`,
/// or fewer if the words do not yield more. Pairs that occur less than `min_frequency` times are not merged. The result
/// does not depend on the order of `words`. Fills in pieces, merges and added tokens.
BpeDescription train_byte_bpe(const WordCounts& words, const std::vector<std::string>& special_tokens, i64 vocab_size,
                              i64 min_frequency);

}  // namespace mcpp
