// Texts whose perplexity is measured.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/document_reader.h"
#include "megatron_cpp/inference/inference.h"

namespace mcpp {

/// What is scored: tokens after one of context, and the size of the text they spell.
struct HeldOut {
  std::string name;  ///< of its file, or files, or of the dataset
  std::vector<i32> tokens;
  i64 words = 0, bytes = 0;  ///< 0 = unknown
};

/// The text of all `files` together, as preprocess reads them. The first document follows the token that begins texts
/// (SpecialTokens::text_begin()), the others the token that ends the document before, which is scored, and bos where
/// the model has one. BadInput for what cannot be read and where there is no text.
HeldOut read_texts(const std::vector<std::string>& files, const DocumentFormat& format, const Tokenizer& tokenizer,
                   const SpecialTokens& special = {});

/// A dataset of preprocess, or of another program. BadInput when it was made with another tokenizer than the model, for
/// tokens outside the model's vocabulary, where there are none, and where the model tells documents apart and no token
/// ends them.
HeldOut read_dataset(const Path& prefix, const InferenceModel& inference);

/// As bytes, for other ranks.
std::string pack(const std::vector<HeldOut>& texts);
std::vector<HeldOut> unpack(std::string_view bytes);

}  // namespace mcpp
