"""Prints the seconds that a library takes to encode the paragraphs of a text, those of the processor, and how many tokens they are.

usage: encode_documents.py MODEL TEXT THREADS: with `tokenizers` where MODEL is a tokenizer.json, else with sentencepiece
"""

import os
import re
import sys
import time

model, text, threads = sys.argv[1:]


def encoder_of_tokenizers():
    os.environ["RAYON_NUM_THREADS"] = threads
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers  # reads the environment

    tokenizer = tokenizers.Tokenizer.from_file(model)
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, where there is such a way
    return lambda documents: [encoding.ids for encoding in encode(documents, add_special_tokens=False)]


def encoder_of_sentencepiece():
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return lambda documents: processor.encode(documents, num_threads=int(threads))


encode = encoder_of_tokenizers() if model.endswith(".json") else encoder_of_sentencepiece()
with open(text, newline="") as file:
    documents = [document for document in re.split(r"(?<=\n\n)(?=[^\n])", file.read()) if document]
began, processor = time.perf_counter(), time.process_time()
tokens = sum(len(ids) for at in range(0, len(documents), 10000) for ids in encode(documents[at:at + 10000]))
print(time.perf_counter() - began, time.process_time() - processor, tokens)
