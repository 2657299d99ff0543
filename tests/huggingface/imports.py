"""Imports small random models of transformers with special tokens, and compares the results of both programs: token ids,
greedy generation, loss of a text, losses of multi-token prediction and the norm of the gradient in training, and
lm-evaluation-harness's log-likelihoods if it is installed.

usage: imports.py MEGATRON_CPP SOURCE_FOLDER [GOLDEN_FOLDER]
With GOLDEN_FOLDER (tests/golden/imports), writes the models for golden_imports_test.cpp there.
Exit code 77, with the reason, if transformers, torch or sentencepiece is not installed.
"""

import functools
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import kimi_linear_names
    import mtp
    import olmo_hybrid_names
    import sentencepiece
    import tokenizers
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIPPED: this Python has no {missing.name} (python3 -m venv ~/peer && ~/peer/bin/pip install transformers torch"
          " sentencepiece protobuf, then HUGGINGFACE_PYTHON=~/peer/bin/python)")
    sys.exit(77)
try:
    import lm_eval.api.instance
    import lm_eval.models.huggingface
except ImportError:
    lm_eval = None

PROMPTS = ["The cat sat on the", "ROMEO:\nhark<|im_end|>what light", "<|im_start|>user\nhello world<|im_end|>", "a  b"]
PAIRS = [("The cat sat on the", " mat"), ("The cat sat on the", " moon"), ("", " Once upon"), ("ends in spaces  ", "word"),
         ("<|im_start|>user\nhello<|im_end|>", "yes"), ("Question: who?\nAnswer:", " ROMEO")]
NEW_TOKENS, WINDOW = 16, 24
CHAT_TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
ADDED = ["<|im_end|>", "<|im_start|>"]


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def added_decoder(first, others=()):
    flags = dict(lstrip=False, rstrip=False, single_word=False, normalized=False, special=True)
    tokens = list(others) + [(first + i, token) for i, token in enumerate(ADDED)]
    return {str(index): dict(flags, content=token) for index, token in tokens}


def sentencepiece_folder(folder, corpus, names, config, **options):
    """Writes a sentencepiece model whose first pieces have these names, and added tokens that it lacks."""
    folder.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=420, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, **options)
    (folder / "tokenizer.vocab").unlink()
    (folder / "tokenizer.model").rename(folder / "tokenizer.model")
    write_json(folder / "tokenizer_config.json", dict(
        config, added_tokens_decoder=added_decoder(420, list(enumerate(names))), chat_template=CHAT_TEMPLATE))
    return folder


def llama(folder, corpus, **config):
    return sentencepiece_folder(folder, corpus, ["<unk>", "<s>", "</s>"], dict(
        dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>"), **config))


def gemma(folder, corpus, **config):
    return sentencepiece_folder(folder, corpus, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], dict(
        dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
             mask_token="<mask>"), **config), add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>",
        eos_piece="<eos>", bos_piece="<bos>", control_symbols=["<mask>"])


def byte_level(folder, corpus, special, bos=None, **config):
    """Writes a tokenizer.json with byte pair encoding; with `bos`, its template adds that token before texts."""
    folder.mkdir(parents=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.train([str(corpus)], tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(ADDED)
    if bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", dict(dict(
        tokenizer_class="PreTrainedTokenizerFast", bos_token=bos, chat_template=CHAT_TEMPLATE), **config))
    return folder


def pair(folder, corpus, **config):
    """Writes vocab.json, merges.txt and added_tokens.json."""
    byte_level(folder, corpus, ["<|endoftext|>"])
    file = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", file["model"]["vocab"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in file["model"]["merges"]))
    write_json(folder / "added_tokens.json", {token: 400 + i for i, token in enumerate(ADDED)})
    write_json(folder / "tokenizer_config.json", dict(dict(
        tokenizer_class="GPT2Tokenizer", bos_token="<|endoftext|>", eos_token="<|im_end|>", unk_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"]), **config))
    return folder


def make_tokenizers(folder, corpus):
    return {
        "llama": llama(folder / "llama", corpus, add_bos_token=True, legacy=True),
        "llama_no_bos": llama(folder / "llama_no_bos", corpus, add_bos_token=False),
        "llama_unstated": llama(folder / "llama_unstated", corpus, legacy=False),
        "llama_chat": llama(folder / "llama_chat", corpus, add_bos_token=True, eos_token="<|im_end|>", legacy=False),
        "gemma": gemma(folder / "gemma", corpus, add_bos_token=True),
        "gemma_unstated": gemma(folder / "gemma_unstated", corpus),
        "llama3": byte_level(folder / "llama3", corpus, ["<|begin_of_text|>", "<|end_of_text|>"], "<|begin_of_text|>",
                             eos_token="<|end_of_text|>"),
        "qwen": byte_level(folder / "qwen", corpus, ["<|endoftext|>"], eos_token="<|im_end|>"),
        "neox": byte_level(folder / "neox", corpus, ["<|endoftext|>", "<|padding|>"], bos_token="<|endoftext|>",
                           eos_token="<|endoftext|>"),
        "pair": pair(folder / "pair", corpus),
        "pair_bos": pair(folder / "pair_bos", corpus, add_bos_token=True),
    }


def write_dataset(prefix, tokens):
    """Writes a dataset of Megatron-LM with one document."""
    prefix.with_suffix(".bin").write_bytes(tokens.to(torch.int32).numpy().tobytes())
    int32 = 4
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, int32, 1, 2) + struct.pack("<iqqq", len(tokens), 0, 0, 1))


FAMILIES = {
    "Llama": dict(num_key_value_heads=2),
    "Mistral": dict(num_key_value_heads=2, sliding_window=16),
    "Qwen2": dict(num_key_value_heads=2),
    "Gemma2": dict(num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
    "GPTNeoX": {},
    "Olmo2": dict(num_key_value_heads=2),
    "Phi3": dict(num_key_value_heads=2),
    "Gemma3Text": dict(num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=16),
    "GPT2": dict(n_embd=32, n_layer=2, n_head=2, n_inner=48, n_positions=64),
}


def random_latent(family, draw):
    """Returns a random configuration with multi-latent attention and experts."""
    heads, rope = draw.choice([1, 2, 4]), draw.choice([2, 4, 8])
    groups, best = draw.choice([(1, 1), (4, 2), (2, 1)])
    options = dict(
        num_attention_heads=heads, num_key_value_heads=heads, q_lora_rank=draw.choice([None, 8, 24]),
        kv_lora_rank=draw.choice([8, 20]), qk_nope_head_dim=draw.choice([4, 10, 16]), qk_rope_head_dim=rope, head_dim=rope,
        v_head_dim=draw.choice([4, 8, 16, 24]), n_routed_experts=8, num_experts_per_tok=draw.choice([2, 3, 4]),
        n_shared_experts=draw.choice([1, 2]), moe_intermediate_size=16, n_group=groups, topk_group=best,
        routed_scaling_factor=draw.choice([1.0, 2.5]), rms_norm_eps=draw.choice([1e-6, 1e-5]),
        rope_parameters=dict(rope_type="default", rope_theta=draw.choice([1e4, 1e6])))
    if draw.random() < 0.6:
        scale = draw.choice([0.707, 1.0])
        options["rope_parameters"].update(rope_type="yarn", factor=draw.choice([4.0, 40.0]), original_max_position_embeddings=16,
                                          **draw.choice([{}, dict(mscale=scale, mscale_all_dim=scale)]))
    if family == "Glm4MoeLite":
        options["mlp_layer_types"] = draw.choice([["dense", "sparse"], ["sparse", "sparse"], ["sparse", "dense"]])
    else:
        options["first_k_dense_replace"] = draw.choice([0, 1])
    if family == "DeepseekV2":
        options["topk_method"] = draw.choice(["greedy", "group_limited_greedy"])
    return options


def random_kimi_linear(rng):
    """Returns a random configuration with Kimi Delta Attention, latent attention without RoPE, and experts."""
    layers, heads, rope = rng.randint(2, 5), rng.choice([1, 2, 4]), rng.choice([2, 4, 8])
    groups, best = rng.choice([(1, 1), (4, 2), (2, 1)])
    kinds = ["full_attention"] + [rng.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(layers - 1)]
    dense = [rng.choice(["dense", "sparse"]) for _ in range(layers - 1)] + ["sparse"]
    return dict(
        num_hidden_layers=layers, layer_types=rng.choice([rng.sample(kinds, layers), kinds]), linear_num_heads=rng.choice([1, 2, 3]),
        linear_head_dim=rng.choice([4, 6, 8]), linear_conv_kernel_dim=rng.randint(2, 5), num_attention_heads=heads,
        num_key_value_heads=heads, q_lora_rank=rng.choice([None, None, 24]), kv_lora_rank=rng.choice([8, 20]),
        qk_nope_head_dim=rng.choice([4, 10, 16]), qk_rope_head_dim=rope, v_head_dim=rng.choice([4, 8, 24]), num_local_experts=8,
        num_experts_per_tok=rng.choice([2, 3, 4]), n_shared_experts=rng.choice([1, 2]), moe_intermediate_size=16, n_group=groups,
        topk_group=best, routed_scaling_factor=rng.choice([1.0, 2.446]), rms_norm_eps=rng.choice([1e-5, 1e-2]),
        mlp_layer_types=rng.choice([["dense"] + ["sparse"] * (layers - 1), ["sparse"] * layers, dense]))


def layer_lists(rng, layers):
    """Returns the layers with RoPE of a model type that has no_rope_layers."""
    return rng.choice([{}, dict(no_rope_layer_interval=2), dict(no_rope_layers=[rng.randrange(2) for _ in range(layers)])])


def random_smollm3(rng):
    layers = rng.randint(1, 5)
    return dict(layer_lists(rng, layers), num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]),
                use_sliding_window=rng.random() < 0.5, sliding_window=rng.randint(2, 12), attention_bias=rng.random() < 0.5,
                mlp_bias=rng.random() < 0.5, tie_word_embeddings=rng.random() < 0.5)


def random_gpt_oss(rng):
    layers, experts = rng.randint(1, 4), rng.randint(2, 6)
    kinds = [None, [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]]
    rope = rng.choice([dict(rope_type="default"), dict(rope_type="yarn", factor=rng.choice([4.0, 32.0]), beta_fast=32.0, beta_slow=1.0,
                                                          truncate=rng.random() < 0.5, original_max_position_embeddings=16)])
    return dict(num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]), head_dim=rng.choice([8, 12, 16]),
                num_local_experts=experts, num_experts_per_tok=rng.randint(2, experts), sliding_window=rng.randint(2, 12),
                layer_types=rng.choice(kinds), attention_bias=rng.random() < 0.8, swiglu_limit=rng.choice([0.3, 1.0, 7.0]),
                rope_parameters=dict(rope, rope_theta=rng.choice([1000.0, 150000.0])), tie_word_embeddings=rng.random() < 0.3)


def random_llama4(rng):
    layers = rng.randint(2, 5)
    sparse = rng.choice([dict(interleave_moe_layer_step=rng.randint(1, 2)),
                            dict(moe_layers=sorted(rng.sample(range(layers), rng.randint(1, layers))))])
    return dict(layer_lists(rng, layers), **sparse, num_hidden_layers=layers, num_attention_heads=4,
                num_key_value_heads=rng.choice([1, 2, 4]), head_dim=rng.choice([8, 12, 16]), intermediate_size_mlp=40,
                num_local_experts=rng.randint(2, 5), use_qk_norm=rng.random() < 0.7, attention_bias=rng.random() < 0.3,
                attention_chunk_size=rng.choice([None, rng.randint(3, 12)]), attn_temperature_tuning=rng.random() < 0.7,
                floor_scale=rng.randint(2, 9), attn_scale=rng.choice([0.1, 0.7]), tie_word_embeddings=rng.random() < 0.3)


def random_qwen3_next(family, rng):
    """Returns a random configuration with Gated DeltaNet and gated attention, and in some families experts."""
    layers, groups, dim = rng.randint(1, 5), rng.choice([1, 2, 3]), rng.choice([8, 12, 16])
    kinds = ["full_attention"] + [rng.choice(["linear_attention", "linear_attention", "full_attention"]) for _ in range(layers - 1)]
    rope = dict(rope_type="default", rope_theta=rng.choice([1e4, 1e7]))
    if rng.random() < 0.4:
        rope.update(rope_type="yarn", factor=rng.choice([4.0, 32.0]), original_max_position_embeddings=16)
    options = dict(
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]), head_dim=dim,
        layer_types=rng.choice([rng.sample(kinds, layers), kinds]), linear_num_key_heads=groups,
        linear_num_value_heads=groups * rng.randint(1, 3), linear_key_head_dim=rng.choice([4, 6, 8]),
        linear_value_head_dim=rng.choice([4, 8, 10]), linear_conv_kernel_dim=rng.randint(2, 5),
        rms_norm_eps=rng.choice([1e-6, 1e-5]), tie_word_embeddings=rng.random() < 0.3,
        rope_parameters=dict(rope, partial_rotary_factor=rng.choice([0.25, 0.5, 1.0]) if dim != 12 else 0.5))
    if family in ("Qwen3Next", "Qwen3_5MoeText"):
        options.update(num_experts=rng.randint(3, 6), num_experts_per_tok=rng.randint(2, 3), moe_intermediate_size=16,
                       shared_expert_intermediate_size=rng.choice([8, 24]))
    if family == "Qwen3Next":
        options.update(norm_topk_prob=rng.random() < 0.7, **rng.choice([
            {}, dict(decoder_sparse_step=min(2, layers)), dict(mlp_only_layers=rng.sample(range(layers), layers - 1))]))
    return options


def random_olmo_hybrid(rng):
    options = random_qwen3_next("OlmoHybrid", rng)
    layers = options["num_hidden_layers"] = max(2, options["num_hidden_layers"])
    kinds = ["linear_attention", "full_attention"] + [rng.choice(["linear_attention", "full_attention"]) for _ in range(layers - 2)]
    rope = options["rope_parameters"]
    del rope["partial_rotary_factor"]
    if rng.random() < 0.5:
        options["rope_parameters"] = dict(rope_type="default", rope_theta=None)
    return dict(options, layer_types=rng.sample(kinds, layers), attention_bias=rng.random() < 0.3, linear_allow_neg_eigval=rng.random() < 0.7)


def random_nemotron(rng):
    kinds = rng.choice(["M*-", "M*-E", "ME*", "E*", "M-", "ME"])
    layers = "".join(rng.choice(kinds) for _ in range(rng.randint(2, 7)))
    if "*" not in layers:  # without attention, transformers cannot generate
        layers += "*"
    groups, heads = rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
    expert_groups, best = rng.choice([(1, 1), (4, 2), (2, 1)])
    return dict(hybrid_override_pattern=layers, num_hidden_layers=None, num_attention_heads=4, num_key_value_heads=rng.choice([1, 2, 4]),
                head_dim=rng.choice([8, 12]), mamba_num_heads=groups * heads, mamba_head_dim=rng.choice([4, 6]), n_groups=groups,
                ssm_state_size=rng.choice([4, 7, 16]), conv_kernel=rng.choice([2, 3, 4]), chunk_size=rng.choice([8, 16]),
                time_step_min=1e-30, layer_norm_epsilon=rng.choice([1e-5, 1e-2]), mlp_bias="E" not in layers and rng.random() < 0.5,
                n_routed_experts=8, num_experts_per_tok=rng.choice([2, 3, 4]), moe_intermediate_size=rng.choice([8, 16]),
                moe_shared_expert_intermediate_size=rng.choice([8, 20]), moe_latent_size=rng.choice([None, 8, 20, 40]),
                n_group=expert_groups, topk_group=best, routed_scaling_factor=rng.choice([1.0, 2.5]))


# Families of which random configurations are checked.
RANDOM_FAMILIES = {"KimiLinear": random_kimi_linear, "NemotronH": random_nemotron, "OlmoHybrid": random_olmo_hybrid, "SmolLM3": random_smollm3, "GptOss": random_gpt_oss, "Llama4Text": random_llama4,
                   **{family: functools.partial(random_qwen3_next, family) for family in ("Qwen3Next", "Qwen3_5Text", "Qwen3_5MoeText")},
                   **{family: functools.partial(random_latent, family) for family in ("DeepseekV2", "DeepseekV3", "Glm4MoeLite")}}
RANDOM_MODELS = 12
# Families whose files may have layers for multi-token prediction, and how many; models have 0, 1, ... in turn.
MTP_LAYERS = {"DeepseekV3": 2, "Glm4MoeLite": 2, "Qwen3Next": 1, "Qwen3_5Text": 1, "Qwen3_5MoeText": 1, "NemotronH": 2}
MTP_FACTOR, MTP_LENGTH, MTP_SAMPLES = 0.1, 16, 3


def families_of(folder):
    """Returns the families for which transformers reads such a tokenizer."""
    if (folder / "vocab.json").exists():
        return ["Llama", "Gemma2", "GPTNeoX", "Gemma3Text", "GPT2"]
    return ["Llama", "Mistral", "Phi3" if (folder / "tokenizer.model").exists() else "Qwen2", "Gemma2", "GPTNeoX", "Olmo2"]


def make_model(folder, tokenizer_folder, family, seed, options):
    """Writes a random model whose second stop token is one that it generates after some others."""
    shutil.copytree(tokenizer_folder, folder)
    configuration = getattr(transformers, f"{family}Config")
    write_json(folder / "config.json", dict(model_type=configuration.model_type))  # determines how texts are tokenized
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {} if family == "GPT2" else dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                             max_position_embeddings=64)
    config = configuration(
        vocab_size=len(tokenizer), **dict(sizes, **options), bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    made = greedy(model, tokenizer, PROMPTS[0], eos=[])
    late = [token for i, token in enumerate(made) if i >= 3 and token not in made[:i]]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id] + late[:1]
    model.save_pretrained(folder)
    if family == "OlmoHybrid":
        olmo_hybrid_names.publish(folder, config)
    if family == "KimiLinear":
        kimi_linear_names.publish(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def greedy(model, tokenizer, prompt, eos=None):
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    options = {} if eos is None else dict(eos_token_id=eos or None)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, **options)
    return out[0, ids.shape[1]:].tolist()


def text_loss(model, tokenizer, text):
    """Returns the loss of all tokens except the first, in windows that each predict up to WINDOW tokens."""
    begin = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    ids = torch.tensor([begin] + tokenizer(text, add_special_tokens=False)["input_ids"])
    total = 0.0
    for at in range(0, len(ids) - 1, WINDOW):
        end = min(at + WINDOW + 1, len(ids))
        part = ids[max(0, end - WINDOW - 1):end]  # the last window is a full one, too
        with torch.no_grad():
            logits = model(part[None, :-1]).logits[0].double()[at + 1 - end:]
        total += torch.nn.functional.cross_entropy(logits, ids[at + 1:end], reduction="sum").item()
    return total / (len(ids) - 1)


def likelihoods(folder):
    if lm_eval is None:
        return None
    model = lm_eval.models.huggingface.HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=4)
    requests = [lm_eval.api.instance.Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i)
                for i, pair in enumerate(PAIRS)]
    return [value for value, _ in model.loglikelihood(requests, disable_tqdm=True)]


class Check:
    def __init__(self, program, scratch, corpus, text):
        self.program, self.scratch, self.failures = program, scratch, 0
        self.text_file = scratch / "held_out.txt"
        self.text_file.write_text(text)
        self.text = text
        self.tasks = scratch / "pairs.jsonl"
        self.tasks.write_text("".join(json.dumps({"context": context, "continuations": [continuation], "target_delimiter": ""}) + "\n"
                                      for context, continuation in PAIRS))

    def run(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments[:2]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def expect(self, holds, *message):
        if not holds:
            self.failures += 1
            print("FAILED:", *message, flush=True)

    def answers(self, folder, model, tokenizer):
        """Returns the results of transformers and lm-evaluation-harness."""
        ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
        return dict(ids=[tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in PROMPTS],
                    generated=[first + greedy(model, tokenizer, prompt) for first, prompt in zip(ids, PROMPTS)],
                    stop=model.generation_config.eos_token_id, loss=text_loss(model, tokenizer, self.text),
                    likelihoods=likelihoods(folder))

    def compare(self, name, checkpoints, expected):
        model = f"--model={checkpoints}/tokenizer.model"
        for prompt, ids, generated in zip(PROMPTS, expected["ids"], expected["generated"]):
            ours = list(map(int, self.run("tokenizer", "encode", model, f"--text={prompt}").split()))
            self.expect(ours == ids, name, repr(prompt), "\n  ours  ", ours, "\n  theirs", ids)
            shown = generated[:-1] if generated[-1] in expected["stop"] else generated
            theirs = self.run("tokenizer", "decode", model, "--text=" + " ".join(map(str, shown)))
            written = self.run("tokenizer", "decode", model, "--text=" + " ".join(map(str, ids)))
            text = self.run("generate", f"--load={checkpoints}", f"--prompt={prompt}", "--temperature=0",
                            f"--max_new_tokens={NEW_TOKENS}", "--precision=fp32")
            self.expect(text[len(prompt):] == theirs[len(written):] + "\n", name, repr(prompt), "\n  ours  ",
                        repr(text[len(prompt):]), "\n  theirs", repr(theirs[len(written):]))
        report = json.loads(self.run("evaluate", f"--load={checkpoints}", f"--text={self.text_file}", f"--window={WINDOW}",
                                     "--json", "--precision=fp32"))
        self.expect(abs(report["loss"] / expected["loss"] - 1) < 1e-5, name, "loss", report["loss"], "theirs", expected["loss"])
        if expected["likelihoods"] is None:
            return
        samples = self.scratch / "samples.jsonl"
        self.run("evaluate", f"--load={checkpoints}", f"--tasks={self.tasks}", f"--log_samples={samples}", "--precision=fp32")
        for pair, line, theirs in zip(PAIRS, samples.read_text().splitlines(), expected["likelihoods"], strict=True):
            ours = json.loads(line)["log_likelihoods"][0]
            self.expect(abs(ours - theirs) <= 1e-4 * max(1, abs(theirs)), name, pair, "ours", ours, "lm_eval", theirs)

    def check_export(self, name, folder, checkpoints, expected):
        """Checks that an export keeps the token configuration of the import."""
        exported = folder / "exported"
        self.run("checkpoint", "export-hf", checkpoints, exported)
        tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
        original = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
        for key in ("bos_token_id", "eos_token_id"):
            self.expect(getattr(tokenizer, key) == getattr(original, key), name, "exported", key, getattr(tokenizer, key))
        self.expect(tokenizer.chat_template == original.chat_template, name, "exports another chat template")
        self.expect(model.generation_config.eos_token_id == expected["stop"], name, "exports eos",
                    model.generation_config.eos_token_id)
        for prompt in PROMPTS:
            self.expect(tokenizer(prompt)["input_ids"] == original(prompt)["input_ids"], name, repr(prompt), "exported ids",
                        tokenizer(prompt)["input_ids"], original(prompt)["input_ids"])

    def check_weights(self, name, folder):
        """Checks that an export of the same model type has the imported weights, byte for byte."""
        model_type = json.loads((folder / "config.json").read_text())["model_type"]
        self.run("checkpoint", "export-hf", folder / "run", folder / "same", f"--model_type={model_type}")
        self.expect((folder / "same" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes(), name,
                    "exports other weights")

    def check_training(self, name, folder, model, prediction):
        """Compares the losses and the norm of the gradient of one step with those of transformers."""
        text = torch.randint(20, 300, (MTP_SAMPLES * MTP_LENGTH + 1,))
        samples = torch.stack([text[at:at + MTP_LENGTH + 1] for at in range(0, len(text) - 1, MTP_LENGTH)])
        losses = mtp.losses(model, prediction, samples)
        weights = [1.0] + [MTP_FACTOR / prediction.num_mtp_layers] * prediction.num_mtp_layers
        sum(weight * loss.sum() for weight, loss in zip(weights, losses)).div(losses[0].numel()).backward()
        parameters = {id(parameter): parameter for module in (model, prediction) for parameter in module.parameters()}
        norm = torch.stack([p.grad.double().norm() for p in parameters.values() if p.grad is not None]).norm().item()
        write_dataset(folder / "text", text)
        (folder / "train.toml").write_text(self.run("checkpoint", "show", folder / "run", "--toml"))
        self.run("pretrain", folder / "train.toml", f"--checkpoint.load={folder}/run", "--checkpoint.finetune",
                 f"--checkpoint.save={folder}/trained", f"--data.data_path={folder}/text", "--data.split=1,0,0",
                 f"--data.tokenizer_model={folder}/run/tokenizer.model", f"--model.seq_length={MTP_LENGTH}",
                 "--training.train_iters=1", "--training.eval_iters=0", f"--training.global_batch_size={MTP_SAMPLES}",
                 f"--training.micro_batch_size={MTP_SAMPLES}", "--training.precision=fp32", "--logging.log_interval=1",
                 *(["--model.moe_aux_loss_coeff=0"] if hasattr(model.config, "num_experts_per_tok") else []))
        metrics = [json.loads(line) for line in (folder / "trained" / "metrics.jsonl").read_text().splitlines()]
        step = next(line for line in metrics if line["type"] == "train")
        for ours, loss in zip([step["lm_loss"]] + step["mtp_losses"], losses, strict=True):
            self.expect(abs(ours / loss.mean().item() - 1) < 1e-5, name, "loss in training", ours, "theirs", loss.mean().item())
        self.expect(abs(step["grad_norm"] / norm - 1) < 1e-4, name, "norm of the gradient", step["grad_norm"], "theirs", norm)
        exported = transformers.AutoModelForCausalLM.from_pretrained(folder / "same", dtype=torch.float32)
        for ours, loss in zip(mtp.losses(exported, mtp.load(folder / "same", exported), samples), losses, strict=True):
            # PyTorch's grouped GEMM sums in an order that depends on the alignment of weights.
            self.expect(torch.allclose(ours, loss, rtol=1e-4, atol=1e-5), name, "exports other layers for multi-token prediction")

    def check(self, name, tokenizer_folder, family, seed, options, mtp_layers=0):
        folder = self.scratch / "models" / name
        try:
            model, tokenizer = make_model(folder, tokenizer_folder, family, seed, options)
            prediction = mtp.make(model, mtp_layers) if mtp_layers > 0 else None
            if prediction is not None:
                mtp.publish(folder, model, prediction)
            expected = self.answers(folder, model, tokenizer)
            self.run("checkpoint", "import-hf", folder, f"--save={folder}/run")
            self.compare(name, folder / "run", expected)
            self.check_export(name, folder, folder / "run", expected)
            self.check_weights(name, folder)
            if prediction is not None:
                self.check_training(name, folder, model, prediction)
        except RuntimeError as error:
            self.expect(False, name, error)
        print(name, "done", flush=True)
        return folder


def write_golden(check, folder, destination):
    """Writes a model and its expected results for the tests without transformers."""
    destination.mkdir(parents=True, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, destination)
    write_json(destination / "expected.json", dict(check.answers(folder, model, tokenizer), prompts=PROMPTS, window=WINDOW,
                                                   text=check.text, new_tokens=NEW_TOKENS, pairs=PAIRS))


def main():
    print("transformers", transformers.__version__, "lm_eval", getattr(lm_eval, "__version__", "missing"), flush=True)
    transformers.logging.set_verbosity_error()
    source = pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        shakespeare = (source / "data" / "tinyshakespeare.txt").read_text()
        corpus = scratch / "corpus.txt"
        corpus.write_text(shakespeare[:100000])
        check = Check(sys.argv[1], scratch, corpus, shakespeare[200000:200600].strip())
        folders = make_tokenizers(scratch / "tokenizers", corpus)
        golden = {"llama_chat_Llama", "gemma_Gemma2", "pair_GPT2"}
        models = [(tokenizer, family) for tokenizer in folders for family in families_of(folders[tokenizer])]
        for seed, (tokenizer, family) in enumerate(models):
            name = f"{tokenizer}_{family}"
            if len(sys.argv) > 3 and name not in golden:
                continue
            folder = check.check(name, folders[tokenizer], family, seed, FAMILIES[family])
            if len(sys.argv) > 3:
                write_golden(check, folder, pathlib.Path(sys.argv[3]) / name)
        for family, draw in RANDOM_FAMILIES.items() if len(sys.argv) <= 3 else ():
            for seed in range(RANDOM_MODELS):
                options = draw(random.Random(f"{family} {seed}"))
                check.check(f"{family}_{seed}", folders["qwen"], family, seed, options, seed % (MTP_LAYERS.get(family, 0) + 1))
    print(check.failures, "failures")
    sys.exit(1 if check.failures else 0)


if __name__ == "__main__":
    main()
