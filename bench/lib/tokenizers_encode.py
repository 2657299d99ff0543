"""Prints the seconds that `tokenizers` takes to encode the paragraphs of a text, and how many tokens they are.

usage: tokenizers_encode.py TOKENIZER_JSON TEXT THREADS
"""

import os
import re
import sys
import time

os.environ["RAYON_NUM_THREADS"] = sys.argv[3]
os.environ["TOKENIZERS_PARALLELISM"] = "true"
import tokenizers  # noqa: E402, reads the environment

tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], newline="") as file:
    documents = [document for document in re.split(r"(?<=\n\n)(?=[^\n])", file.read()) if document]
encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # without offsets, where there is such a way
began, processor = time.perf_counter(), time.process_time()
tokens = sum(len(encoding.ids) for at in range(0, len(documents), 10000)
             for encoding in encode(documents[at:at + 10000], add_special_tokens=False))
print(time.perf_counter() - began, time.process_time() - processor, tokens)
