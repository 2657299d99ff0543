// Loss masks: datasets with 1 for each token of another dataset that a model learns to predict, and 0 for the others.
#pragma once
#include <span>

#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {

/// Number of different values in a loss mask.
inline constexpr i64 kLossMaskValues = 2;

/// Throws BadInput unless `mask` has a value for each token of `tokens`.
void check_loss_mask(const IndexedDataset& tokens, const IndexedDataset& mask);

/// Reads the values [offset, offset + targets.size()) of a sequence. Throws BadInput for values other than 0 and 1.
void read_loss_mask(const IndexedDataset& mask, i64 sequence, i64 offset, std::span<u8> targets);

}  // namespace mcpp
