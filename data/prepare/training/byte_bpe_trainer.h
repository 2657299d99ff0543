// Learning a byte-level vocabulary by byte pair encoding, as the BpeTrainer of `tokenizers` does: the same words and
// counts give the same pieces and merges, ties included.
#pragma once
#include <string>
#include <vector>

#include "data/prepare/training/training_text.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Pieces are the special tokens, the 256 bytes, and what merges make until there are `vocab_size`; fewer when the
/// words give no more. A pair that occurs less than `min_frequency` times is not merged. Nothing depends on the order
/// of `words`. Fills pieces, merges and added tokens of the result.
BpeDescription train_byte_bpe(const WordCounts& words, const std::vector<std::string>& special_tokens, i64 vocab_size,
                              i64 min_frequency);

}  // namespace mcpp
