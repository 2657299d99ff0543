// The documents inside samples, which are cut from one long row of them: as Megatron-LM's
// get_ltor_masks_and_position_ids tells them apart.
#pragma once
#include "data/read/batch.h"

namespace mcpp {

/// Like batch.tokens: the position in its sample at which the document of each token begins. A document ends with the
/// token `eod`; one whose beginning lies in an earlier sample begins at 0.
std::vector<i32> document_starts(const Batch& batch, i64 eod);

/// Labels that follow an `eod`, the first tokens of other documents, become -1: they are not counted.
void leave_out_after_eod(Batch& batch, i64 eod);

}  // namespace mcpp
