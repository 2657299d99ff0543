"""Trains small tokenizers and models, exports them, and checks that transformers returns identical ids and text.

usage: check.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if transformers is not installed.
"""

import argparse
import collections
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import transformers
except ImportError:
    print("SKIPPED: this Python has no transformers (python3 -m venv ~/peer && ~/peer/bin/pip install transformers torch,"
          " then HUGGINGFACE_PYTHON=~/peer/bin/python)")
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None

# Characters that tokenizers are known to treat differently.
ODD = ["<eod>", "<unk>", "<s>", "</s>", "<0x0A>", "<0x41>", "\t", " ", "  ", "     ", "\n", "\n\n", "\r\n", "\u00a0", "\u3000",
       "\u2009", "\u200b", "\ufeff", "\u2581", "\u2581\u2581", "\u00e9", "e\u0301", "\U0001f600", "\u6f22\u5b57", "\x00",
       "\x7f", "<", ">", "<<eod>>", "----", "...", "''", "!!!!!", "aaaa", "\ufb01", "\u2047"]
EDGES = ["", " ", "  ", " leading", "trailing ", "\tleading", "trailing\n", "<eod>", "a <eod> b", "<unk>", " <eod><eod> ",
         "two  spaces", "NBSP\u00a0here", "ideographic\u3000space", "one\u2581mark", "\u2581", "\n\n\n\n\n", " " * 37]
MODELS = {
    "gpt2": [],
    "llama": ["--model.position_embedding_type=rope", "--model.normalization=RMSNorm", "--model.activation_func=swiglu",
              "--model.add_bias_linear=false", "--model.num_query_groups=2"],
}


def is_rounding_tie(folder, ours, theirs):
    """Returns True if both are segmentations of one text by a unigram model whose scores differ by no more than rounding.

    sentencepiece, which we follow, adds scores in fp32 from the beginning of the text; `tokenizers` adds in fp64. Where a
    long text has segmentations that are this close, the two libraries choose differently.
    """
    file = folder / "tokenizer.json"
    model = json.loads(file.read_text())["model"] if file.exists() else {}
    if model.get("type") != "Unigram" or max(ours + theirs) >= len(model["vocab"]):
        return False
    pieces = [["".join(model["vocab"][i][0] for i in ids), sum(model["vocab"][i][1] for i in ids)] for ids in (ours, theirs)]
    differing = sum((collections.Counter(ours) - collections.Counter(theirs)).values()) + 1
    return pieces[0][0] == pieces[1][0] and abs(pieces[0][1] - pieces[1][1]) <= differing * 2.0**-23 * abs(pieces[1][1])


class Check:
    def __init__(self, program, source, scratch):
        self.program, self.scratch = program, scratch
        self.shakespeare = (source / "data" / "tinyshakespeare.txt").read_text()
        self.random = random.Random(20)
        self.failures = 0
        # Prose has no runs of spaces that would become a piece.
        self.corpus = scratch / "corpus.txt"
        program_text = pathlib.Path(argparse.__file__).read_text()
        self.corpus.write_text(self.shakespeare[:300000] + program_text, newline="")
        self.prose, self.program_text = self.shakespeare[300000:], program_text

    def run(self, *arguments):
        done = subprocess.run([self.program, *arguments], capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{arguments[:2]}: {done.stderr.decode()}")
        return done.stdout

    def expect(self, holds, *message):
        if not holds:
            self.failures += 1
            print("FAILED:", *message)

    def texts(self, count):
        def excerpt(text, size):
            at = self.random.randrange(len(text) - size)
            return text[at:at + size]

        yield from EDGES
        yield from ODD
        yield self.prose[:40000]
        yield self.program_text[:40000]
        for _ in range(count):
            parts = []
            for _ in range(self.random.randrange(1, 12)):
                size = self.random.randrange(1, 40)
                parts.append(self.random.choice([self.random.choice(ODD), excerpt(self.prose, size),
                                                 excerpt(self.program_text, size)]))
            yield "".join(parts)

    def ids(self, model, text):
        """Returns our ids. The text is in a file, so that every byte is preserved."""
        file = self.scratch / "text.txt"
        file.write_bytes(text.encode())
        return [int(word) for word in self.run("tokenizer", "encode", f"--model={model}", f"--input={file}").split()]

    def check_tokenizer(self, name, folder, count):
        """Compares the tokenizer of the exported folder with our file in it. Returns transformers' tokenizer."""
        model = next(folder / file for file in ("tokenizer.model", "tokenizer.json") if (folder / file).exists())
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        self.expect(len(theirs) == self.vocab_size, name, "has", len(theirs), "tokens, ours", self.vocab_size)
        for text in self.texts(count):
            ours = self.ids(model, text)
            got = theirs(text)["input_ids"]
            self.expect(got == ours or is_rounding_tie(folder, ours, got), name, repr(text[:200]), "\n  ours  ", ours[:60],
                        "\n  theirs", got[:60])
            if self.is_lossless:
                self.expect(theirs.decode(got) == text, name, repr(text[:200]), "decodes to", repr(theirs.decode(got)[:200]))
        return theirs

    def check_text(self, name, folder, checkpoints, tokenizer):
        if torch is None:
            print("SKIPPED in part: no torch, so no text was generated")
            return
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.expect(model.config.eos_token_id == tokenizer.eos_token_id, name, "eos_token_id", model.config.eos_token_id)
        self.check_prompts(name, model, checkpoints, tokenizer)

    def text(self, tokenizer, ids):
        """Returns ids as our program prints them, because libraries print incomplete characters differently."""
        folder = pathlib.Path(tokenizer.name_or_path)
        model = next(folder / file for file in ("tokenizer.model", "tokenizer.json") if (folder / file).exists())
        if tokenizer.eos_token_id in ids:
            ids = ids[:ids.index(tokenizer.eos_token_id)]
        words = " ".join(map(str, ids))
        return self.run("tokenizer", "decode", f"--model={model}", f"--text={words}").decode()

    def check_prompts(self, name, model, checkpoints, tokenizer):
        for prompt in ["ROMEO:\n", "a <eod> b", "  two  spaces\t", " leading"]:
            ids = torch.tensor([tokenizer(prompt)["input_ids"]])
            out = model.generate(ids, max_new_tokens=40, do_sample=False, use_cache=True)[0]
            theirs = self.text(tokenizer, out[ids.shape[1]:].tolist()).replace(" \u2047 ", "") + "\n"
            ours = self.run("generate", f"--load={checkpoints}", f"--prompt={prompt}", "--temperature=0",
                            "--max_new_tokens=40").decode()[len(prompt):]
            ours = ours.replace(" \u2047 ", "")  # <unk> has no text
            self.expect(ours == theirs, name, repr(prompt), "\n  ours  ", repr(ours), "\n  theirs", repr(theirs))

    def check(self, model_type, byte_fallback, family, vocab_size):
        name = f"{model_type} {'with bytes' if byte_fallback else 'without bytes'} {family}"
        folder = self.scratch / name.replace(" ", "_")
        self.is_lossless, self.vocab_size = byte_fallback, vocab_size
        self.run("tokenizer", "train", f"--input={self.corpus}", f"--output={folder}/tokenizer.model",
                 f"--vocab_size={vocab_size}", f"--model_type={model_type}", f"--byte_fallback={str(byte_fallback).lower()}")
        self.run("preprocess", f"--input={self.corpus}", "--text_document=paragraph", f"--output_prefix={folder}/data",
                 f"--tokenizer_model={folder}/tokenizer.model")
        (folder / "run.toml").write_text("")
        self.run("pretrain", f"{folder}/run.toml", f"--data.data_path={folder}/data_text_document", f"--data.tokenizer_model={folder}/tokenizer.model",
                 "--model.num_layers=2", "--model.hidden_size=64", "--model.num_attention_heads=4", "--model.seq_length=64",
                 "--training.train_iters=100", "--training.micro_batch_size=4", "--optimizer.lr=1e-2",
                 f"--checkpoint.save={folder}/run", *MODELS[family])
        exported = folder / "exported"
        self.run("checkpoint", "export-hf", f"{folder}/run", str(exported))
        self.check_text(name, exported, folder / "run", self.check_tokenizer(name, exported, 60))
        print(name, "done", flush=True)

    def check_transformers_model(self, name, family, exported, **options):
        """Checks a small model created by transformers, with the tokenizer of an export."""
        folder = self.scratch / name.replace(" ", "_")
        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        torch.manual_seed(3)
        if family != "GPTNeoX":
            options["num_key_value_heads"] = 2
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(getattr(transformers, f"{family}Config")(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None, **options))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
        shutil.copy(exported / "tokenizer.model", folder)
        self.run("checkpoint", "import-hf", f"{folder}", f"--save={folder}/run")
        self.check_prompts(name, model, folder / "run", tokenizer)
        print(name, "done", flush=True)

    def check_round_trip(self, original):
        """Checks that a transformers model is unchanged after import and export."""
        folder = self.scratch / "round_trip" / original.name
        self.run("checkpoint", "import-hf", f"{original}", f"--save={folder}/run")
        config = json.loads((original / "config.json").read_text())
        model_type = config["model_type"]
        self.run("checkpoint", "export-hf", f"{folder}/run", f"{folder}/exported", f"--model_type={model_type}")
        self.expect((folder / "exported" / "model.safetensors").read_bytes() ==
                    (original / "model.safetensors").read_bytes(), original.name, "has other weights after a round trip")
        # transformers 4 ignores rope_parameters, which transformers 5 writes instead of rope_scaling and rope_theta.
        written = config["transformers_version"]
        if int(written.split(".")[0]) > int(transformers.__version__.split(".")[0]):
            print(original.name, "done, weights only: created by transformers", written, flush=True)
            return
        tokens = torch.arange(100)[None] * 7 % 32
        # PyTorch's grouped GEMM requires rows of a multiple of 16 bytes, and exports omit chunk_size, which affects rounding.
        options = {}
        if model_type == "nemotron_h":
            options = dict(experts_implementation="eager", chunk_size=config["chunk_size"])
        logits = [transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)(tokens).logits
                  for path in (original, folder / "exported")]
        self.expect(torch.equal(*logits), original.name, "is off after a round trip by", (logits[0] - logits[1]).abs().max())
        print(original.name, "done", flush=True)


def main():
    print("transformers", transformers.__version__, "torch", torch.__version__ if torch else "missing", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(sys.argv[2])
        check = Check(sys.argv[1], source, pathlib.Path(scratch))
        check.check("bpe", True, "gpt2", 1500)
        check.check("unigram", True, "llama", 1500)
        check.check("bpe-bytes", True, "llama", 1500)
        check.check("bpe", False, "llama", 1000)
        check.check("unigram", False, "gpt2", 1000)
        if torch is not None:
            exported = check.scratch / "bpe_with_bytes_gpt2" / "exported"
            for attention, mlp in [(True, False), (False, True), (True, True)]:
                check.check_transformers_model(f"llama with attention_bias {attention}, mlp_bias {mlp}", "Llama", exported,
                                 attention_bias=attention, mlp_bias=mlp)
            check.check_transformers_model("mistral", "Mistral", exported, sliding_window=9)  # 40 tokens are generated
            check.check_transformers_model("qwen2", "Qwen2", exported, use_sliding_window=True, sliding_window=9, max_window_layers=1)
            for rope in [{"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0,
                         "original_max_position_embeddings": 16}, {"rope_type": "llama3", "factor": 8.0,
                         "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}]:
                check.check_transformers_model(f"llama {rope['rope_type']}", "Llama", exported, rope_scaling=rope)
            check.check_transformers_model("qwen3", "Qwen3", exported, head_dim=24)
            check.check_transformers_model("phi3", "Phi3", exported, sliding_window=9)
            check.check_transformers_model("olmo2", "Olmo2", exported)
            check.check_transformers_model("gemma2", "Gemma2", exported, head_dim=24, sliding_window=9, query_pre_attn_scalar=20)
            check.check_transformers_model("gemma3", "Gemma3Text", exported, head_dim=24, sliding_window=9, query_pre_attn_scalar=20,
                             sliding_window_pattern=2)
            check.check_transformers_model("dots1", "Dots1", exported, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                             moe_intermediate_size=32, first_k_dense_replace=1, norm_topk_prob=True, sliding_window=None)
            check.check_transformers_model("gpt_neox", "GPTNeoX", exported)
            for kind in ("attention", "families"):
                for original in sorted((source / "tests" / "golden" / kind).iterdir()):
                    check.check_round_trip(original)
    sys.exit(1 if check.failures else 0)


main()
