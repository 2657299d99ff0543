"""Trains a small model, exports it, and compares the scores of three tasks with lm-evaluation-harness: choices of long
endings (HellaSwag), choices of short answers (ARC), and the last word of a passage (LAMBADA).

usage: check.py MEGATRON_CPP SOURCE_FOLDER [--write FOLDER]
--write stores model, tasks and scores for tests/megatron_cpp/end_to_end/tasks_test.cpp.
Exit code 77, with the reason, if lm-evaluation-harness is not installed.
"""

import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import lm_eval
    import lm_eval.api.task
    import lm_eval.evaluator
    import lm_eval.models.huggingface
except ImportError as missing:
    print(f"SKIPPED: this Python has no lm_eval ({missing}; python3 -m venv ~/peer && ~/peer/bin/pip install lm_eval[hf]"
          " torch, then LM_EVAL_PYTHON=~/peer/bin/python)")
    sys.exit(77)

ITEMS = 40
ODD = ["na\u00efve caf\u00e9", "\u6f22\u5b57 and kana", "two  spaces", "\u00a0thin", "tab\there", "emoji \U0001f600"]


class Texts:
    """Reproducible excerpts of a text."""

    def __init__(self, text):
        self.words, self.random = text.split(" "), random.Random(18)

    def some(self, low, high):
        count = self.random.randint(low, high)
        at = self.random.randrange(len(self.words) - count)
        text = " ".join(self.words[at:at + count]).strip()
        return text or "a word"

    def choice(self, low, high, choices, ending):
        """Returns a context and continuations, with the true one at a random position."""
        at = self.random.randrange(len(self.words) - 400)
        count, after = self.random.randint(low, high), self.random.randint(*ending)
        right = " ".join(self.words[at + count:at + count + after]).strip() or "none"
        wrong = [self.some(*ending) for _ in range(choices - 1)]
        answer = self.random.randrange(choices)
        return {"context": " ".join(self.words[at:at + count]), "continuations": wrong[:answer] + [right] + wrong[answer:],
                "answer": answer}


def hellaswag(texts):
    items = [texts.choice(5, 60, 4, (3, 7)) for _ in range(ITEMS)]
    for item, odd in zip(items, ODD):
        item["continuations"][0] = odd
        item["context"] += texts.random.choice(["", " ", "  ", "\n", "\u3000", " \t\n"])
    items[7]["context"] = texts.some(300, 300)  # far beyond the model's context
    return items


def arc(texts):
    items = [texts.choice(3, 12, 4, (1, 3)) for _ in range(ITEMS)]
    for item in items:
        item["context"] = "Question: " + item["context"] + "\nAnswer:"
    items[3]["context"] = ""
    return items


def lambada(texts):
    items = []
    for _ in range(ITEMS):
        words = texts.some(20, 80).split(" ")
        items.append({"context": " ".join(words[:-1]), "continuations": [words[-1] or "end"]})
    return items


TASKS = {"hellaswag": (hellaswag, "multiple_choice"), "arc": (arc, "multiple_choice"), "lambada": (lambada, "loglikelihood")}


def configuration(name, kind, file):
    config = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}},
              "test_split": "test", "output_type": kind, "doc_to_text": "context"}
    if kind == "multiple_choice":
        return config | {"doc_to_choice": "continuations", "doc_to_target": "answer",
                         "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}
                                         for metric in ("acc", "acc_norm", "acc_bytes")]}
    return config | {"doc_to_target": "{{' ' + continuations[0]}}",
                     "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                                     {"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{arguments[:2]}: {done.stderr.decode()}")
    return done.stdout.decode()


def make_model(program, source, folder):
    text = (source / "data" / "tinyshakespeare.txt").read_text()
    (folder / "train.txt").write_text(text[:200000] + " ".join(ODD) * 20)
    run(program, "tokenizer", "train", f"--input={folder}/train.txt", f"--output={folder}/tokenizer.model", "--vocab_size=500")
    run(program, "preprocess", f"--input={folder}/train.txt", "--text_document=paragraph", f"--output_prefix={folder}/data",
        f"--tokenizer_model={folder}/tokenizer.model")
    (folder / "run.toml").write_text("")
    run(program, "pretrain", f"{folder}/run.toml", f"--data.data_path={folder}/data_text_document",
        f"--data.tokenizer_model={folder}/tokenizer.model", "--data.split=1", "--model.num_layers=2", "--model.hidden_size=48",
        "--model.num_attention_heads=4", "--model.seq_length=64", "--training.train_iters=100", "--training.micro_batch_size=8", "--device.num_threads=1",
        "--optimizer.lr=1e-2", f"--checkpoint.save={folder}/run")
    run(program, "checkpoint", "export-hf", f"{folder}/run", f"{folder}/exported")
    return text[300000:]


def theirs(folder, files):
    model = lm_eval.models.huggingface.HFLM(pretrained=str(folder / "exported"), dtype="float32", device="cpu", batch_size=4)
    tasks = {name: lm_eval.api.task.ConfigurableTask(config=configuration(name, TASKS[name][1], file))
             for name, file in files.items()}
    results = lm_eval.evaluator.evaluate(lm=model, task_dict={"tasks": tasks, "groups": {}, "group_map": {}},
                                         log_samples=True, bootstrap_iters=1000)
    found = {}
    for name in files:
        scores = {key.removesuffix(",none").replace("_stderr,none", "_stderr"): value
                  for key, value in results["results"][name].items() if key.endswith(",none")}
        samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        scores["samples"] = [[[float(value), str(is_greedy) == "True"] for value, is_greedy in sample["filtered_resps"]]
                             if isinstance(sample["filtered_resps"][0], (list, tuple)) else [list(sample["filtered_resps"])]
                             for sample in samples]
        found[name] = scores
    return found


def ours(program, folder, files):
    text = run(program, "evaluate", f"--load={folder}/run", "--tasks=" + ",".join(map(str, files.values())), "--json",
               f"--log_samples={folder}/samples.jsonl", "--precision=fp32")
    found = {task["task"]: task for task in json.loads(text)["tasks"]}
    for line in map(json.loads, (folder / "samples.jsonl").read_text().splitlines()):
        pairs = [list(pair) for pair in zip(line["log_likelihoods"], line["is_greedy"])]
        found[line["task"]].setdefault("samples", []).append(pairs)
    return found


def differences(expected, found):
    for name, scores in expected.items():
        for key, value in scores.items():
            if key in ("samples", "perplexity_stderr", "alias"):  # that error is a random estimate there
                continue
            if abs(found[name][key] - value) > 1e-5 * max(1, abs(value)):
                yield f"{name} {key}: {found[name][key]}, lm-evaluation-harness {value}"
        for index, (own, their) in enumerate(zip(found[name]["samples"], scores["samples"], strict=True)):
            for (value, is_greedy), (wanted, wanted_greedy) in zip(own, their, strict=True):
                if abs(value - wanted) > 1e-4 * max(1, abs(wanted)) or is_greedy != wanted_greedy:
                    yield f"{name} item {index}: {value} {is_greedy}, lm-evaluation-harness {wanted} {wanted_greedy}"


def write(folder, kept, files, expected):
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors", "tokenizer.model"):
        shutil.copy(folder / "exported" / name, kept)
    for file in files.values():
        shutil.copy(file, kept)
    (kept / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    print("lm_eval", getattr(lm_eval, "__version__", "of an unknown version"), flush=True)
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        texts = Texts(make_model(program, source, folder))
        files = {}
        for name, (make, _) in TASKS.items():
            files[name] = folder / f"{name}.jsonl"
            files[name].write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in make(texts)))
        expected = theirs(folder, files)
        found = list(differences(expected, ours(program, folder, files)))
        for name, scores in expected.items():
            print(name, {key: value for key, value in scores.items() if key != "samples"})
        for difference in found[:20]:
            print("FAILED:", difference)
        if len(sys.argv) > 4:
            write(folder, pathlib.Path(sys.argv[4]), files, expected)
        sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
