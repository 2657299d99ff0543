#include "data/dataset/loss_mask.h"

#include <vector>

#include "base/check.h"

namespace mcpp {

void check_loss_mask(const IndexedDataset& tokens, const IndexedDataset& mask) {
  const auto check_equal = [&](const char* what, i64 expected, i64 found) {
    check_input(expected == found, mask.prefix().string(), ".idx: has ", found, " ", what, ", but ",
                tokens.prefix().string(), ".idx has ", expected,
                "; the loss mask and the dataset do not belong together; preprocess the text again");
  };
  check_equal("sequences", tokens.num_sequences(), mask.num_sequences());
  check_equal("documents", tokens.num_documents(), mask.num_documents());
  for (i64 sequence = 0; sequence < tokens.num_sequences(); ++sequence) {
    if (tokens.length(sequence) != mask.length(sequence))
      check_equal(str("tokens in sequence ", sequence).c_str(), tokens.length(sequence), mask.length(sequence));
  }
}

void read_loss_mask(const IndexedDataset& mask, i64 sequence, i64 offset, std::span<u8> targets) {
  std::vector<i32> values(targets.size());
  mask.read(sequence, offset, values);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    check_input(values[i] == 0 || values[i] == 1, mask.prefix().string(), ".bin: sequence ", sequence, ", value ",
                offset + static_cast<i64>(i), ": ", values[i], " is neither 0 nor 1; the file is damaged");
    targets[i] = static_cast<u8>(values[i]);
  }
}

}  // namespace mcpp
