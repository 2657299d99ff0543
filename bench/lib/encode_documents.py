"""Encodes the paragraphs of a text with a library and prints wall-clock seconds, CPU seconds and the number of tokens.

    encode_documents.py MODEL TEXT THREADS

Uses `tokenizers` if MODEL is a tokenizer.json, otherwise sentencepiece.
"""

import os
import re
import sys
import time

model, text, threads = sys.argv[1:]


def tokenizers_encoder():
    os.environ["RAYON_NUM_THREADS"] = threads
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers  # reads the environment

    tokenizer = tokenizers.Tokenizer.from_file(model)
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, if available
    return lambda documents: [encoding.ids for encoding in encode(documents, add_special_tokens=False)]


def sentencepiece_encoder():
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    return lambda documents: processor.encode(documents, num_threads=int(threads))


encode = tokenizers_encoder() if model.endswith(".json") else sentencepiece_encoder()
with open(text, newline="") as file:
    documents = [document for document in re.split(r"(?<=\n\n)(?=[^\n])", file.read()) if document]
start, cpu_start = time.perf_counter(), time.process_time()
tokens = sum(len(ids) for at in range(0, len(documents), 10000) for ids in encode(documents[at:at + 10000]))
print(time.perf_counter() - start, time.process_time() - cpu_start, tokens)
