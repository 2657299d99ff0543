"""Trains tokenizers with the rules of GPT-2, Llama 3, Qwen 2 and others, and compares our ids with those of `tokenizers`.

usage: check.py MEGATRON_CPP SOURCE_FOLDER [--strings=N] [--rules=A,B] [--golden=FOLDER]
Exit code 77, with the reason, if `tokenizers` is not installed. --strings: number of random Unicode strings for each.
--rules: only these rules. --golden: writes the files for tests/data/bpe_tokenizer_test.cpp instead.
"""

import argparse
import array
import base64
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

try:
    import tokenizers
except ImportError:
    print("SKIPPED: this Python has no tokenizers (python3 -m venv ~/peer && ~/peer/bin/pip install tokenizers,"
          " then HUGGINGFACE_PYTHON=~/peer/bin/python)")
    sys.exit(77)
try:
    import tiktoken
except ImportError:
    tiktoken = None
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|")
O200K = CASED + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")
END = "<|endoftext|>"
# Characters that the rules are known to treat differently.
ODD = ["'s", "'S", "'\u017f", "'LL", "'re", " '", "''", "\t", "  ", "     ", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000",
       "\u0085", "\u2028", "\u200b", "\u180e", "\ufeff", "\u2581", "\u00e9", "e\u0301", "\u0301", "\u1100\u1161\u11a8",
       "\U0001f600", "\U0001f469\u200d\U0001f680", "\u6f22\u5b57", "\x00", "\x7f", "\u01c5", "\u02b0", "\u0660\u0661", "\u2167",
       "\u00bd", "\ufb01", "123", "1234567", "0x1F", "a1b2", "camelCaseWord", "HTTPServer", "___", "...", "!!!\n\n", "/*", "*/\n",
       "<|", "|>", "<|endoftext|", "}\n\n", "\u0dca", "\u0e33", "\u212b", "\u1e9b\u0323"]


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def byte_level(*before):
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# Name: normalizer and pre-tokenizer. `tokenizer train` offers the first five.
RULES = {
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": (None, byte_level(split(LLAMA3))),
    "qwen2": (normalizers.NFC(), byte_level(split(QWEN2))),
    "cl100k": (None, byte_level(split(CL100K))),
    "o200k": (None, byte_level(split(O200K))),
    "prefix_space": (normalizers.NFKC(), pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "deepseek": (normalizers.Sequence([]), byte_level(
        split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK))),
    "digits": (normalizers.NFD(), pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "behaviors": (None, pre_tokenizers.Sequence([
        pre_tokenizers.Split("e", "merged_with_previous"), pre_tokenizers.Split(Regex("[to]"), "merged_with_next"),
        pre_tokenizers.Split(Regex(r"\d+"), "removed"), pre_tokenizers.Split(Regex(r"\w*"), "contiguous", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
}
ADDED = [AddedToken("<a>", lstrip=True), AddedToken("<b>", rstrip=True, normalized=False),
         AddedToken("wordy", single_word=True), AddedToken("\u212b\u212b", normalized=True), AddedToken("    "),
         AddedToken("<|endoftext|><|endoftext|>", normalized=False)]


class Check:
    def __init__(self, program, source, scratch, strings):
        self.program, self.scratch, self.strings = program, scratch, strings
        self.random = random.Random(18)
        self.failures = 0
        prose = (source / "data" / "tinyshakespeare.txt").read_text()
        code = pathlib.Path(argparse.__file__).read_text() + (source / "CMakeLists.txt").read_text()
        code += "".join(path.read_text() for path in sorted((source / "base").glob("*.cpp")))
        odd = "".join(self.random.choice(ODD) + self.random.choice(["", " ", "x"]) for _ in range(4000))
        self.corpus = scratch / "corpus.txt"
        self.corpus_text = prose[:300000] + code[:150000] + odd
        self.corpus.write_bytes(self.corpus_text.encode())
        self.prose, self.code = prose[300000:], code
        self.known = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
        self.skip_unsupported_marks()

    def skip_unsupported_marks(self):
        """Skips marks that are newer than the Unicode version of the library's normalizers, which do not order them."""
        forms = {"NFC": normalizers.NFC(), "NFKC": normalizers.NFKC(), "NFD": normalizers.NFD()}
        old = {c for c in self.known for text in (f"b\u0301{c}\u0323", c + "\u0323") for form, theirs in forms.items()
               if theirs.normalize_str(text) != unicodedata.normalize(form, text)}
        self.known = [c for c in self.known if c not in old]
        print(len(old), "characters skipped: the library's normalizers do not support them or deviate from Unicode",
              unicodedata.unidata_version)

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{arguments[:4]}: {done.stderr.decode()}")
        return done.stdout

    def expect(self, holds, *message):
        if not holds:
            self.failures += 1
            if self.failures < 20:
                print("FAILED:", *message)

    def random_string(self):
        kinds = [lambda: self.random.choice(ODD), lambda: chr(self.random.randrange(32, 127)),
                 lambda: self.random.choice(self.known), lambda: chr(self.random.randrange(0x300, 0x370)),
                 lambda: chr(self.random.randrange(0xac00, 0xd7a4)), lambda: self.random.choice(" \n\t'"),
                 lambda: chr(self.random.randrange(0x4e00, 0x9fa6)), lambda: self.random.choice(["<a>", "<b>", "wordy", END])]
        return "".join(self.random.choice(kinds)() for _ in range(self.random.randrange(1, 10)))

    def texts(self, strings):
        yield from ODD
        yield from (self.prose, self.code, "", "a" * 3000, " " * 3000 + "x", "\n" * 500 + " x", "ab" * 2000, "A" * 5000)
        for _ in range(300):
            text = self.random.choice([self.prose, self.code])
            at, size = self.random.randrange(len(text)), self.random.randrange(1, 400)
            yield text[at:at + size]
        for _ in range(strings):
            yield self.random_string()

    def our_ids(self, model, texts):
        """Returns the ids that preprocess writes, with one document for each text."""
        lines, prefix = self.scratch / "texts.jsonl", self.scratch / "ours"
        with open(lines, "w") as file:
            for text in texts:
                file.write(json.dumps({"text": text}) + "\n")
        self.run("preprocess", lines, f"--output_prefix={prefix}", f"--tokenizer_model={model}", "--append_eod=false",
                 "--keep_empty")
        index = pathlib.Path(f"{prefix}_text_document.idx").read_bytes()
        code, sequences, documents = struct.unpack_from("<BQQ", index, 17)
        lengths = array.array("i", index[34:34 + 4 * sequences])
        ends = array.array("q", index[34 + 12 * sequences:34 + 12 * sequences + 8 * documents])
        tokens = array.array({4: "i", 8: "H"}[code], pathlib.Path(f"{prefix}_text_document.bin").read_bytes())
        at = 0
        for begin, end in zip(ends, ends[1:]):
            size = sum(lengths[begin:end])
            yield tokens[at:at + size].tolist()
            at += size

    def compare(self, name, model, theirs, strings):
        texts = list(self.texts(strings))
        count = 0
        for text, ours, encoding in zip(texts, self.our_ids(model, texts),
                                        theirs.encode_batch(texts, add_special_tokens=False)):
            count += 1
            self.expect(ours == encoding.ids, name, ascii(text[:100]), "\n  ours  ", ours[:40], "\n  theirs", encoding.ids[:40])
        self.expect(count == len(texts), name, count, "documents of", len(texts))
        print(f"{name}: {count} texts compared", flush=True)

    def trainer(self, vocab_size):
        return trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=[END], show_progress=False,
                                   initial_alphabet=pre_tokenizers.ByteLevel.alphabet())

    def trained(self, rules, vocab_size):
        tokenizer = tokenizers.Tokenizer(models.BPE())
        normalizer, tokenizer.pre_tokenizer = RULES[rules]
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator([self.corpus_text], self.trainer(vocab_size))
        return tokenizer

    def check_rules(self, rules):
        theirs = self.trained(rules, 3000)
        if rules not in ("cl100k", "o200k"):
            theirs.add_tokens(ADDED)
        path = self.scratch / f"{rules}.json"
        theirs.save(str(path))
        self.compare(rules, path, theirs, self.strings)
        self.check_decode(rules, path, theirs)
        if rules == "llama3":
            changed = json.loads(path.read_text())
            changed["model"]["ignore_merges"] = True
            self.random.shuffle(changed["model"]["merges"])
            path.write_text(json.dumps(changed))
            self.compare("ignore_merges", path, tokenizers.Tokenizer.from_file(str(path)), 2000)

    def check_decode(self, name, path, theirs):
        for text in [self.prose[:3000], "a\u00e9\u6f22\U0001f600 <a> x"]:
            ids = theirs.encode(text, add_special_tokens=False).ids
            ours = self.run("tokenizer", "decode", f"--model={path}", "--text=" + " ".join(map(str, ids))).decode()
            self.expect(ours == theirs.decode(ids), name, "decodes", ascii(ours[:80]), ascii(theirs.decode(ids)[:80]))

    def check_training(self, rules):
        path = self.scratch / "trained.json"
        self.run("tokenizer", "train", self.corpus, f"--output={path}", "--model_type=bpe-bytes", "--vocab_size=4000",
                 f"--pre_tokenizer={rules}")
        ours, theirs = json.loads(path.read_text()), json.loads(self.trained(rules, 4000).to_str())
        pairs = [tuple(merge) for merge in theirs["model"]["merges"]]
        self.expect(ours["model"]["vocab"] == theirs["model"]["vocab"], rules, "trains to another vocabulary")
        self.expect([tuple(merge) for merge in ours["model"]["merges"]] == pairs, rules, "trains to other merges")
        self.compare(f"trained here, {rules}", path, tokenizers.Tokenizer.from_file(str(path)), 2000)

    def check_pair(self):
        theirs = self.trained("gpt2", 2000)
        folder = self.scratch / "pair"
        folder.mkdir()
        theirs.model.save(str(folder))
        theirs.add_special_tokens([END])
        for name in ("vocab.json", "merges.txt"):
            self.compare(name, folder / name, theirs, 2000)

    def metaspace(self, scheme, vocab_size):
        """Tests a tokenizer like Llama 2's: spaces are U+2581, bytes are pieces, and there is no pre-tokenization."""
        tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        specials = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.train_from_iterator([self.corpus_text[:200000]], trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=specials, show_progress=False, limit_alphabet=90))
        file = json.loads(tokenizer.to_str())
        file["added_tokens"] = file["added_tokens"][:3]
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
        if scheme == "normalizer":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
            tokenizer.pre_tokenizer = None
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        strip = [decoders.Strip(" ", 1, 0)] if scheme != "never" else []
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] + strip)
        return tokenizer

    def check_metaspace(self):
        for scheme in ("normalizer", "first", "never"):
            tokenizer = self.metaspace(scheme, 1500)
            path = self.scratch / "metaspace.json"
            tokenizer.save(str(path))
            self.compare(f"metaspace, {scheme}", path, tokenizer, self.strings // 10)
            self.check_decode(f"metaspace, {scheme}", path, tokenizer)

    def check_ranks(self):
        theirs = json.loads(self.trained("gpt2", 3000).to_str())["model"]["vocab"]
        byte_of = {c: b for b, c in enumerate_characters()}
        pieces = sorted(((i, bytes(byte_of[c] for c in piece)) for piece, i in theirs.items() if piece != END))
        ranks = {piece: i for i, (_, piece) in enumerate(pieces)}
        path, converted = self.scratch / "ranks.tiktoken", self.scratch / "converted.json"
        path.write_text("".join(f"{base64.b64encode(piece).decode()} {rank}\n" for piece, rank in ranks.items()))
        for rules, pattern in (("llama3", LLAMA3), ("cl100k", CL100K), ("o200k", O200K)):
            self.run("tokenizer", "convert", path, converted, f"--pre_tokenizer={rules}")
            self.compare(f"converted ranks, {rules}", converted, tokenizers.Tokenizer.from_file(str(converted)), 2000)
            if tiktoken is None:
                print("SKIPPED in part: no tiktoken")
                continue
            encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={END: len(ranks)})
            texts = list(self.texts(self.strings // 10))
            for text, ours in zip(texts, self.our_ids(converted, texts)):
                ids = encoding.encode(text, allowed_special="all")
                self.expect(ours == ids, "tiktoken", rules, ascii(text[:100]), ours[:40], ids[:40])
            print(f"tiktoken, {rules}: {len(texts)} texts compared", flush=True)

    def write_golden(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        texts = ODD + [self.prose[:2000], self.code[:2000]] + [self.random_string() for _ in range(300)]
        for rules in ("gpt2", "llama3", "qwen2", "metaspace"):
            tokenizer = self.metaspace("first", 600) if rules == "metaspace" else self.trained(rules, 600)
            tokenizer.add_tokens(ADDED)
            tokenizer.save(str(folder / f"{rules}.json"))
            with open(folder / f"{rules}_ids.jsonl", "w") as file:
                for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False)):
                    file.write(json.dumps({"text": text, "ids": encoding.ids}) + "\n")


def enumerate_characters():
    shown = [*range(33, 127), *range(0xa1, 0xad), *range(0xae, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [(byte, chr(byte)) for byte in shown] + [(byte, chr(256 + i)) for i, byte in enumerate(hidden)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--strings", type=int, default=5000)
    parser.add_argument("--rules", default="")
    parser.add_argument("--golden", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        check = Check(arguments.program, arguments.source, pathlib.Path(scratch), arguments.strings)
        if arguments.golden:
            check.write_golden(arguments.golden)
            return
        print("tokenizers", tokenizers.__version__)
        for rules in arguments.rules.split(",") if arguments.rules else RULES:
            check.check_rules(rules)
        if not arguments.rules:
            for rules in list(RULES)[:5]:
                check.check_training(rules)
            check.check_pair()
            check.check_metaspace()
            check.check_ranks()
    print("failures:", check.failures)
    sys.exit(1 if check.failures else 0)


main()
