"""Trains with checkpoint.export_hf_interval and compares the exports with checkpoint export-hf and transformers; kills a
run during an export.

usage: exports.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if transformers is not installed.
"""

import hashlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import transformers
except ImportError:
    print("SKIPPED: this Python has no transformers and torch; HUGGINGFACE_PYTHON names another one")
    sys.exit(77)

CONFIG = """[model]
num_layers = 2
hidden_size = {width}
num_attention_heads = 4
vocab_size = {vocab}
seq_length = 16
position_embedding_type = "rope"
normalization = "RMSNorm"
activation_func = "swiglu"
add_bias_linear = false
untie_embeddings_and_output_weights = true
[training]
global_batch_size = 2
train_iters = 6
[data]
mock_data = true
[checkpoint]
save = "{save}"
save_interval = 2
export_hf_interval = {interval}
export_hf_max_shard_size = {shard}
"""


def write_config(scratch, name, width, vocab, interval, shard):
    file = scratch / f"{name}.toml"
    file.write_text(CONFIG.format(save=scratch / name, width=width, vocab=vocab, interval=interval, shard=shard))
    return file


def run(program, *arguments):
    result = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{arguments}: {result.stdout}{result.stderr}"
    return result.stdout + result.stderr


def tensors_of(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest() for name, value in model.state_dict().items()}


def check_exports(program, scratch):
    for options in ([], ["--checkpoint.async_save"]):
        name = "async" if options else "sync"
        file = write_config(scratch, name, width=64, vocab=256, interval=4, shard=50000)
        output = run(program, "pretrain", file, *options)
        exports = scratch / name / "huggingface"
        assert [path.name for path in exports.iterdir()] == ["iter_0000004"], list(exports.iterdir())
        assert f"exported {exports / 'iter_0000004'}" in output, output
        index = json.loads((exports / "iter_0000004" / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) > 3, index
        sizes = [path.stat().st_size for path in (exports / "iter_0000004").glob("*.safetensors")]
        assert max(sizes) < 70000, sizes
        run(program, "checkpoint", "export-hf", scratch / name / "iter_0000004", scratch / f"{name}_export")
        assert tensors_of(exports / "iter_0000004") == tensors_of(scratch / f"{name}_export")
        run(program, "checkpoint", "verify", scratch / name)
    # A run that is set back replaces the export.
    save = scratch / "sync"
    for iteration in (4, 6):
        shutil.rmtree(save / f"iter_000000{iteration}")
    (save / "latest").write_text("iter_0000002")
    (save / "huggingface" / "iter_0000004" / "marker").touch()
    run(program, "pretrain", scratch / "sync.toml")
    assert [path.name for path in (save / "huggingface").iterdir()] == ["iter_0000004"]
    assert not (save / "huggingface" / "iter_0000004" / "marker").exists()
    assert tensors_of(save / "huggingface" / "iter_0000004") == tensors_of(scratch / "sync_export")
    print("exports beside the training equal those of checkpoint export-hf, in transformers")


def check_kill(program, scratch):
    """Kills a run while an export has a temporary name. Tries again with more files if the export was too fast."""
    for attempt in range(6):
        name = f"killed_{attempt}"
        file = write_config(scratch, name, width=256, vocab=4096, interval=2, shard=1)
        exports = scratch / name / "huggingface"
        process = subprocess.Popen([program, "pretrain", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (exports.is_dir() and any(".tmp-" in path.name for path in exports.iterdir())):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        temporary = [path for path in exports.iterdir() if ".tmp-" in path.name]
        for path in exports.iterdir():
            if path not in temporary:
                tensors_of(path)  # complete
        if temporary:
            break
    else:
        raise AssertionError("no run was killed during an export")
    run(program, "pretrain", file)
    names = sorted(path.name for path in exports.iterdir())
    assert not any(".tmp-" in name for name in names) and "iter_0000006" in names, names
    for path in exports.iterdir():
        tensors_of(path)
    print("a run killed during an export leaves no incomplete export")


def check_ranks(program, scratch):
    if not shutil.which("mpirun"):
        return
    file = write_config(scratch, "ranks", width=64, vocab=256, interval=6, shard=50000)
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", "2", program, "pretrain", str(file),
               "--parallel.tensor_model_parallel_size=2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result
    run(program, "checkpoint", "export-hf", scratch / "ranks", scratch / "ranks_export")
    assert tensors_of(scratch / "ranks" / "huggingface" / "iter_0000006") == tensors_of(scratch / "ranks_export")
    print("rank 0 exports what all ranks saved")


def check_failures(program, scratch):
    file = write_config(scratch, "blocked", width=64, vocab=256, interval=2, shard=50000)
    (scratch / "blocked").mkdir()
    (scratch / "blocked" / "huggingface").write_text("a file where the folder should be")
    output = run(program, "pretrain", file)
    assert "the Hugging Face export of" in output and "failed" in output, output
    assert (scratch / "blocked" / "iter_0000006").is_dir()
    print("a failed export does not end the training")


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        check_exports(program, scratch)
        check_ranks(program, scratch)
        check_kill(program, scratch)
        check_failures(program, scratch)


if __name__ == "__main__":
    main()
