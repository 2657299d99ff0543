// Document boundaries within samples, which are slices of one concatenation of all documents. Follows Megatron-LM's
// get_ltor_masks_and_position_ids.
#pragma once
#include "data/config.h"
#include "data/dataset/batch.h"
#include "data/dataset/index/indexed_dataset.h"

namespace mcpp {

/// Document handling that a model was trained with (data.reset_position_ids, data.reset_attention_mask and
/// data.eod_mask_loss), for code that reads tokens outside of training.
struct DocumentRules {
  i64 eod = -1;                     ///< token that ends a document
  bool resets_attention = false;    ///< attention is limited to the document
  bool resets_positions = false;    ///< positions count from the start of the document
  bool skips_first_tokens = false;  ///< the first token of a document is excluded from the loss

  bool has_starts() const { return resets_attention || resets_positions; }
};

/// Returns the rules of a resolved configuration. Throws BadInput if a key is set but data.eod_token is not.
DocumentRules document_rules(const DataConfig& data);

/// Returns the fraction of documents, of up to 10,000 spread over the dataset, that end with token `eod`. Throws
/// BadInput if none does and the token is in none of the first million tokens: document rules would have no effect.
double check_ends_documents(const IndexedDataset& dataset, i64 eod);

/// Returns, for each token, the position in its sample at which its document starts. Same shape as batch.tokens. A
/// document ends with the token `eod`; a document that started in an earlier sample starts at 0.
std::vector<i32> document_starts(const Batch& batch, i64 eod);

/// Sets the labels at `eod` positions, which belong to the next document, to -1 to exclude them from the loss.
void mask_labels_at_eod(Batch& batch, i64 eod);

}  // namespace mcpp
