// Held-out texts whose perplexity is measured.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/preprocess/document_reader.h"
#include "megatron_cpp/inference/inference.h"

namespace mcpp {

/// Tokens to score, after one context token, and the size of the text they encode.
struct HeldOut {
  std::string name;  ///< name of the file, files or dataset
  std::vector<i32> tokens;
  i64 words = 0, bytes = 0;  ///< 0 = unknown
};

/// Reads all `files` as one text, in the formats of preprocess. The first document follows the token that begins texts
/// (SpecialTokens::text_begin()). Each later document follows the end token of the previous one, which is scored, and
/// bos if the model has one. Throws BadInput if a file cannot be read or there is no text.
HeldOut read_texts(const std::vector<std::string>& files, const DocumentFormat& format, const Tokenizer& tokenizer,
                   const SpecialTokens& special = {});

/// Reads a dataset of preprocess or of a compatible program. Throws BadInput if it is empty, was made with a tokenizer
/// other than the model's, has tokens outside of the model's vocabulary, or lacks end tokens although the model
/// separates documents.
HeldOut read_dataset(const Path& prefix, const InferenceModel& inference);

/// Serializes texts, for other ranks.
std::string pack(const std::vector<HeldOut>& texts);
std::vector<HeldOut> unpack(std::string_view bytes);

}  // namespace mcpp
