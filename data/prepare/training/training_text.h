// The text of files in the forms that trainers take.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/prepare/input_files.h"
#include "data/prepare/training/training_progress.h"
#include "data/tokenizer/bpe/known_rules.h"

namespace sentencepiece {
class SentenceIterator;
}

namespace mcpp {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using WordCounts = std::unordered_map<std::string, i64, TextHash, std::equal_to<>>;

/// The text of `files`, which outlives it, in parts that begin with the punctuation and newlines which end a line, or,
/// where lines are long, with a space, read as they are asked for. So ":\n" or ".\n\nThe" can become pieces: on English
/// drama 10 % (unigram) and 2 % (bpe) fewer tokens than with sentencepiece's own reading line by line, where a newline
/// is never seen, and on an encyclopedia, where it seldom sees a word end, 10 % (unigram). Reserved characters are left
/// out. BadInput for what cannot be read.
std::unique_ptr<sentencepiece::SentenceIterator> training_blocks(InputFiles& files, TrainingProgress& progress);

/// Each different word of `files` once, as "word<TAB>count", which is all that byte pair encoding learns from: the
/// library, which would put each word of the text through all its steps before it counts, gets each once. A word has
/// the spaces before it. It ends where its line does, and what ends a line, such as ",\n" or "!\n\n", is a word of its
/// own: the library's time goes by the number of different words, and "word", "word,\n" and "word\nNext" would be
/// three. All is read at once, on `threads` threads; the words and counts do not depend on their number. Reserved
/// characters are left out. BadInput for what cannot be read.
std::unique_ptr<sentencepiece::SentenceIterator> training_words(InputFiles& files, i64 threads,
                                                                TrainingProgress& progress);

/// Each different word of `files`, as the rules cut and normalise them, and how often it is there. Parts of a document
/// that are read at once are cut for themselves. Read on `threads` threads; nothing depends on their number. BadInput
/// for what cannot be read.
WordCounts count_byte_words(InputFiles& files, PreTokenization rules, i64 threads, TrainingProgress& progress);

}  // namespace mcpp
