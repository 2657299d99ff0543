"""Imports a run of PyTorch, continues it, exports it, and continues the export in PyTorch.

usage: check.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if torch is not installed.
"""

import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_optimizer_state_dict,
                                                         set_optimizer_state_dict)
except ImportError:
    print("SKIPPED: this Python has no torch; HUGGINGFACE_PYTHON names another one")
    sys.exit(77)

import make_golden as golden

CONFIG = f"""[model]
num_layers = {golden.LAYERS}
hidden_size = {golden.WIDTH}
num_attention_heads = {golden.HEADS}
num_query_groups = {golden.GROUPS}
ffn_hidden_size = {golden.FFN}
vocab_size = {golden.VOCAB}
seq_length = {golden.SEQUENCE}
position_embedding_type = "rope"
normalization = "RMSNorm"
norm_epsilon = 1e-5
activation_func = "swiglu"
add_bias_linear = false
untie_embeddings_and_output_weights = true
hidden_dropout = 0.0
attention_dropout = 0.0
[optimizer]
lr = {golden.LR}
lr_decay_style = "constant"
weight_decay = {golden.DECAY}
adam_beta1 = {golden.BETAS[0]}
adam_beta2 = {golden.BETAS[1]}
adam_eps = {golden.EPS}
clip_grad = 0.0
[training]
global_batch_size = {golden.BATCH}
train_iters = 5
[data]
mock_data = true
"""


def run(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def load_in_torch(folder):
    """Loads an exported checkpoint. Returns the model, its optimizer and the number of finished steps."""
    model = golden.Transformer()
    optimizer = golden.optimizer_of(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)  # adds initial_lr, which the checkpoint must have
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = {**model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer, options=flat),
             "train_state": {"step": torch.tensor(0, dtype=torch.int32)}}
    dcp.load(state, checkpoint_id=str(folder), no_dist=True)
    set_optimizer_state_dict(model, optimizer, state.pop("optimizer"), options=flat)
    step = state.pop("train_state")["step"].item()
    model.load_state_dict(state)
    return model, optimizer, step


def losses_of(model, optimizer, tokens):
    def loss_of(sample):
        return torch.nn.functional.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
    return golden.train(loss_of, optimizer, tokens, len(tokens))


def check_round_trip(program, scratch):
    expected = json.loads((scratch / "torchtitan" / "expected.json").read_text())
    run(program, "checkpoint", "import", scratch / "torchtitan", f"--config={scratch / 'run.toml'}",
        f"--save={scratch / 'imported'}")
    run(program, "checkpoint", "export-dcp", scratch / "imported", scratch / "exported")
    model, optimizer, step = load_in_torch(scratch / "exported")
    assert step == golden.BEFORE, step
    assert {(group["lr"], group["initial_lr"]) for group in optimizer.param_groups} == {(golden.LR, golden.LR)}
    losses = losses_of(model, optimizer, torch.tensor(expected["tokens"]))
    assert all(abs(a - b) < 1e-6 for a, b in zip(losses, expected["losses"], strict=True)), (losses, expected["losses"])
    print("an exported run continues in PyTorch like the original:", losses)


def check_continued_run(program, scratch):
    """pretrain continues the imported run without differences, and PyTorch loads what it saved."""
    for precision in ("fp32", "bf16"):
        saved = scratch / f"continued_{precision}"
        text = CONFIG.replace("[training]\n", f'[training]\nprecision = "{precision}"\n')
        (scratch / f"{precision}.toml").write_text(text)
        run(program, "checkpoint", "import", scratch / "torchtitan", f"--config={scratch / f'{precision}.toml'}",
            f"--save={scratch / f'imported_{precision}'}")
        output = run(program, "pretrain", scratch / f"{precision}.toml", f"--checkpoint.load={scratch / f'imported_{precision}'}",
                     f"--checkpoint.save={saved}")
        assert "resuming from" in output and (saved / "iter_0000005").is_dir(), output
        run(program, "checkpoint", "export-dcp", saved, scratch / f"export_{precision}")
        model, optimizer, step = load_in_torch(scratch / f"export_{precision}")
        assert step == 5, step
        steps = {state["step"].item() for state in optimizer.state.values()}
        assert steps == {5.0}, steps
        assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    print("pretrain continues an imported run, in fp32 and in bf16")


def check_huggingface_files(program, scratch):
    """pytorch_model.bin, whole and in parts, gives the same checkpoint as safetensors, also with tied embeddings."""
    try:
        import transformers
    except ImportError:
        return
    shape = {"vocab_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    models = {
        "llama": transformers.LlamaForCausalLM(transformers.LlamaConfig(hidden_size=16, intermediate_size=24, **shape)),
        "tied": transformers.LlamaForCausalLM(
            transformers.LlamaConfig(hidden_size=16, intermediate_size=24, tie_word_embeddings=True, **shape)),
        "gpt2": transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, n_layer=2, n_head=4, n_embd=16)),
    }
    for name, model in models.items():
        model.save_pretrained(scratch / name / "safetensors")
        run(program, "checkpoint", "import-hf", scratch / name / "safetensors", f"--save={scratch / name / 'expected'}")
        state = model.state_dict()
        for kind in ("whole", "parts"):
            folder = scratch / name / kind
            folder.mkdir()
            (folder / "config.json").write_bytes((scratch / name / "safetensors" / "config.json").read_bytes())
            if kind == "whole":
                torch.save(state, folder / "pytorch_model.bin")
            else:
                files = {key: f"pytorch_model-{i % 2}.bin" for i, key in enumerate(state)}
                for file in set(files.values()):
                    torch.save({key: value for key, value in state.items() if files[key] == file}, folder / file)
                (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
            run(program, "checkpoint", "import", folder, f"--save={folder / 'imported'}")
            run(program, "checkpoint", "diff", folder / "imported", scratch / name / "expected")
    print("pytorch_model.bin gives the same weights as safetensors:", ", ".join(models))


def check_rejections(program, scratch):
    (scratch / "evil.pt").write_bytes(b"")
    class Evil:
        def __reduce__(self):
            return eval, (f"open({str(scratch / 'pwned')!r}, 'w')",)
    torch.save({"model": {"tok_embeddings.weight": torch.zeros(2, 2)}, "x": Evil()}, scratch / "evil.pt")
    result = subprocess.run([program, "checkpoint", "import", scratch / "evil.pt", f"--config={scratch / 'run.toml'}",
                             f"--save={scratch / 'evil'}"], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "eval, which is not a class of checkpoints" in result.stderr, result
    assert not (scratch / "pwned").exists() and not (scratch / "evil").exists()
    result = subprocess.run([program, "checkpoint", "export-dcp", scratch / "imported", scratch / "exported"],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "already has a distributed checkpoint" in result.stderr, result
    print("hostile files and full folders are rejected")


def main():
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        with tarfile.open(source / "tests/golden/foreign/torchtitan.tar.gz") as tar:
            tar.extractall(scratch / "torchtitan", filter="data")
        (scratch / "run.toml").write_text(CONFIG)
        check_round_trip(program, scratch)
        check_continued_run(program, scratch)
        check_huggingface_files(program, scratch)
        check_rejections(program, scratch)


if __name__ == "__main__":
    main()
