#include "data/dataset/documents.h"

#include <algorithm>

#include "base/check.h"

namespace mcpp {

DocumentRules document_rules(const DataConfig& data) {
  const DocumentRules rules{.eod = data.eod_token,
                            .resets_attention = data.reset_attention_mask,
                            .resets_positions = data.reset_position_ids,
                            .skips_first_tokens = data.eod_mask_loss};
  check_input(rules.eod >= 0 || (!rules.has_starts() && !rules.skips_first_tokens),
              "data.eod_token: is not set, and data.reset_position_ids, data.reset_attention_mask and "
              "data.eod_mask_loss read it");
  return rules;
}

double check_ends_documents(const IndexedDataset& dataset, i64 eod) {
  constexpr i64 kMostDocuments = 10'000, kMostTokens = 1'000'000;
  const auto is_eod = [&](i64 sequence, i64 offset) {
    i32 token = 0;
    dataset.read(sequence, offset, std::span(&token, 1));
    return token == eod;
  };
  const i64 documents = dataset.num_documents(), step = std::max<i64>(1, documents / kMostDocuments);
  i64 sampled = 0, ended = 0;
  for (i64 document = 0; document < documents; document += step) {
    const i64 end = dataset.document_begin(document + 1);
    if (end == dataset.document_begin(document) || dataset.length(end - 1) == 0) continue;
    ++sampled;
    ended += is_eod(end - 1, dataset.length(end - 1) - 1);
  }
  if (ended > 0) return static_cast<double>(ended) / static_cast<double>(sampled);
  i64 seen = 0;  // other programs may store several documents per sequence
  for (i64 sequence = 0; sequence < dataset.num_sequences() && seen < kMostTokens; ++sequence) {
    std::vector<i32> tokens(static_cast<std::size_t>(std::min(dataset.length(sequence), kMostTokens - seen)));
    dataset.read(sequence, 0, tokens);
    if (std::ranges::count(tokens, static_cast<i32>(eod)) > 0) return 0;
    seen += static_cast<i64>(tokens.size());
  }
  fail(ExitCode::BadInput, dataset.prefix().string(), ".bin: no document ends with data.eod_token = ", eod,
       ", so data.reset_position_ids, data.reset_attention_mask and data.eod_mask_loss would do nothing; make the "
       "dataset anew with --append_eod, name the token that ends its documents as data.eod_token, or leave the keys "
       "out");
}

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

void mask_labels_at_eod(Batch& batch, i64 eod) {
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] == eod) batch.labels[i] = -1;
  }
}

}  // namespace mcpp
