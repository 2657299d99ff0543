#include "data/read/documents.h"

namespace mcpp {

std::vector<i32> document_starts(const Batch& batch, i64 eod) {
  std::vector<i32> starts;
  starts.reserve(batch.tokens.size());
  i64 start = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const i64 position = static_cast<i64>(i) % batch.seq_length;
    if (position == 0)
      start = 0;
    else if (batch.tokens[i - 1] == eod)
      start = position;
    starts.push_back(static_cast<i32>(start));
  }
  return starts;
}

void leave_out_after_eod(Batch& batch, i64 eod) {
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] == eod) batch.labels[i] = -1;
  }
}

}  // namespace mcpp
