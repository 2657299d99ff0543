"""Writes tests/golden/fim/expected.jsonl: samples before and after fill in the middle, for fim_test.cpp.

usage: make_fim_golden.py TOKENIZERS FILE     (a Python with tokenizers; TOKENIZERS is tests/golden/tokenizers)

Written from the description of Megatron-LM's GPTFIMDataset (Bavarian et al. 2022, "Efficient training of language models
to fill in the middle"), with one difference: random choices come from Philox4x32-10, keyed by the sample, and texts
without characters are not rearranged. Each line holds the options, the key, the sample number, the tokens and the result.
"""

import json
import random
import sys

from tokenizers import AddedToken, Tokenizer

MASK = 0xFFFFFFFF
MARKS = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"]
SPLIT = "<|file_sep|>"


def philox(key, counter):
    k0, k1 = key & MASK, key >> 32
    c = list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & MASK, (a >> 32) ^ c[3] ^ k1, a & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


class Draws:
    def __init__(self, key, sample):
        self.key, self.sample, self.count = key, sample, 0

    def bits(self):
        block, element = divmod(self.count, 4)
        self.count += 1
        return philox(self.key, [self.sample & MASK, self.sample >> 32, block, 0])[element]

    def binomial(self, p):
        return (self.bits() + 0.5) / 2**32 < p

    def randint(self, high):  # [0, high)
        return self.bits() * high >> 32


class FillInTheMiddle:
    def __init__(self, tokenizer, options):
        self.tokenizer, self.options = tokenizer, options
        self.prefix, self.middle, self.suffix, self.pad = map(tokenizer.token_to_id, MARKS)
        self.eod = tokenizer.token_to_id("<|endoftext|>")
        self.split = tokenizer.token_to_id(SPLIT) if options["split"] else None

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def permute(self, tokens, rate, draws):
        if not tokens or not draws.binomial(rate):
            return tokens
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if self.options["no_prefix"] and text.startswith(self.options["no_prefix"]):
            return tokens
        low, high = sorted([draws.randint(len(text) + 1), draws.randint(len(text) + 1)])
        prefix, middle, suffix = (self.encode(part) for part in (text[:low], text[low:high], text[high:]))
        if draws.binomial(self.options["spm_rate"]):
            return [self.prefix, self.suffix, *suffix, self.middle, *prefix, *middle]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle, *middle]

    def segments(self, tokens, separator):
        """Returns the parts before each separator, and the last one."""
        parts = [[]]
        for token in tokens:
            if token == separator:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts[:-1], parts[-1]

    def document(self, tokens, draws):
        if self.split is None or self.split not in tokens:
            return self.permute(tokens, self.options["rate"], draws)
        if not draws.binomial(self.options["rate"]):
            return tokens
        ended, last = self.segments(tokens, self.split)
        result = []
        for part in ended:
            if part:
                result += self.permute(part, self.options["fragment_rate"], draws) + [self.split]
        return result + self.permute(last, self.options["fragment_rate"], draws)

    def sample(self, tokens, key, number):
        draws = Draws(key, number)
        ended, last = self.segments(tokens, self.eod)
        result = []
        for part in ended:
            if part:
                result += self.document(part, draws) + [self.eod]
        result += self.document(last, draws)
        return (result + [self.pad] * len(tokens))[:len(tokens)]


def main():
    folder, file = sys.argv[1:]
    tokenizer = Tokenizer.from_file(f"{folder}/qwen2.json")
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.add_tokens([AddedToken(SPLIT, special=False)])
    rng = random.Random(7)
    words = ["def f(x):\n", "    return x\n", "the", " king", "'s", " 123", "\u6f22\u5b57", " caf\u00e9", "\U0001f600", "\n\n",
             "// a\n", " \u0420\u0443\u0441"]
    cases = [dict(rate=1, spm_rate=0), dict(rate=1, spm_rate=1), dict(rate=0.5, spm_rate=0.5),
             dict(rate=1, spm_rate=0.5, split=True, fragment_rate=1),
             dict(rate=0.7, spm_rate=0.5, split=True, fragment_rate=0.5), dict(rate=1, spm_rate=0.5, no_prefix="// a")]
    with open(file, "w") as out:
        for case in cases:
            options = {"split": False, "fragment_rate": 0.5, "no_prefix": "", **case}
            fim = FillInTheMiddle(tokenizer, options)
            for number in range(12):
                tokens = []
                for _ in range(rng.randint(1, 5)):
                    text = "".join(rng.choice(words) for _ in range(rng.randint(0, 20)))
                    if options["split"] and rng.random() < 0.7:
                        text += SPLIT * rng.randint(1, 2) + "".join(rng.choice(words) for _ in range(rng.randint(0, 9)))
                    tokens += fim.encode(text) + [fim.eod] * rng.randint(1, 2)
                begin = rng.randint(0, 3)  # a sample may begin inside a character
                tokens = tokens[begin:len(tokens) - rng.randint(0, 2)] or [fim.eod]
                while tokenizer.decode(tokens).endswith("\ufffd"):  # libraries replace a cut character differently
                    tokens.pop()
                key, sample = rng.getrandbits(64), number + (1 << 33) * (number % 2)
                line = dict(options=options, key=str(key), sample=sample, tokens=tokens,
                            expected=fim.sample(tokens, key, sample))
                out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
