// The documents inside samples, which are cut from one long row of them: as Megatron-LM's
// get_ltor_masks_and_position_ids tells them apart.
#pragma once
#include "data/config.h"
#include "data/read/batch.h"
#include "data/read/index/indexed_dataset.h"

namespace mcpp {

/// What a model was trained to do at the ends of documents inside a sample (data.reset_position_ids,
/// data.reset_attention_mask and data.eod_mask_loss), for code that reads tokens outside of a training.
struct DocumentRules {
  i64 eod = -1;                     ///< token that ends a document
  bool resets_attention = false;    ///< attention sees nothing of earlier documents
  bool resets_positions = false;    ///< positions count from the beginning of the document
  bool skips_first_tokens = false;  ///< the token after an end of document does not count in the loss

  bool has_starts() const { return resets_attention || resets_positions; }
};

/// Returns the rules of a resolved configuration. BadInput when a key is set and data.eod_token is not.
DocumentRules document_rules(const DataConfig& data);

/// BadInput, naming the dataset, when no token `eod` ends its documents: a part of the documents is looked at, and the
/// beginning of the text.
void check_ends_documents(const IndexedDataset& dataset, i64 eod);

/// Like batch.tokens: the position in its sample at which the document of each token begins. A document ends with the
/// token `eod`; one whose beginning lies in an earlier sample begins at 0.
std::vector<i32> document_starts(const Batch& batch, i64 eod);

/// Labels that follow an `eod`, the first tokens of other documents, become -1: they are not counted.
void leave_out_after_eod(Batch& batch, i64 eod);

}  // namespace mcpp
