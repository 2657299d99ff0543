"""Trains with event files, with a kill and a resume, and compares TensorBoard's own reader with metrics.jsonl.

usage: check.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if tensorboard is not installed.
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util
except ImportError:
    print("SKIPPED: this Python has no tensorboard (python3 -m venv ~/peer && ~/peer/bin/pip install tensorboard"
          " setuptools, then TENSORBOARD_PYTHON=~/peer/bin/python)")
    sys.exit(77)


def fp32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Check:
    def __init__(self, program, source, scratch):
        self.program, self.scratch = program, scratch
        text = (source / "data" / "tinyshakespeare.txt").read_text()[:60000]
        (scratch / "train.txt").write_text(text)
        self.run("tokenizer", "train", f"--input={scratch}/train.txt", f"--output={scratch}/tokenizer.model",
                 "--vocab_size=400")
        self.run("preprocess", f"--input={scratch}/train.txt", f"--output_prefix={scratch}/train",
                 f"--tokenizer_model={scratch}/tokenizer.model", "--text_document=paragraph")
        toml = (source / "tests" / "support" / "small_training.toml").read_text().replace("@folder@", str(scratch))
        (scratch / "run.toml").write_text(toml)
        self.failures = 0

    def run(self, *arguments, codes=(0,)):
        done = subprocess.run([self.program, *arguments], capture_output=True)
        if done.returncode not in codes:
            sys.exit(f"{arguments[:2]} ended with {done.returncode}: {done.stderr.decode()}")

    def train(self, *arguments, codes=(0,)):
        self.run("pretrain", f"{self.scratch}/run.toml", f"--checkpoint.save={self.scratch}/run",
                 f"--logging.tensorboard_dir={self.scratch}/tb", "--logging.log_params_norm",
                 "--logging.log_num_zeros_in_grad", "--logging.tensorboard_histogram_interval=6", *arguments, codes=codes)

    def expect(self, holds, *message):
        if not holds:
            self.failures += 1
            print("FAILED:", *message)

    def metrics(self, kind):
        lines = (self.scratch / "run" / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["type"] == kind]

    def expect_curve(self, events, tag, points):
        found = [(event.step, event.value) for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else None
        self.expect(found == [(step, fp32(value)) for step, value in points], tag, found, points)

    def compare(self):
        events = EventAccumulator(str(self.scratch / "tb"), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
        events.Reload()
        train = self.metrics("train")
        self.expect(len(train) == 12, "iterations", len(train))
        for tag, key in {"lm loss": "lm_loss", "learning-rate": "learning_rate", "grad-norm": "grad_norm",
                         "loss-scale": "loss_scale", "batch-size": "global_batch_size", "params-norm": "params_norm",
                         "num-zeros": "num_zeros"}.items():
            self.expect_curve(events, tag, [(line["iteration"], line[key]) for line in train])
            self.expect_curve(events, tag + " vs samples", [(line["consumed_samples"], line[key]) for line in train])
        for split in ("validation", "test"):
            lines = self.metrics(split)
            self.expect(lines, "no line of", split)
            self.expect_curve(events, f"lm loss {split}", [(line["iteration"], line["lm_loss"]) for line in lines])
            self.expect_curve(events, f"lm loss {split} ppl", [(line["iteration"], line["perplexity"]) for line in lines])
        for tag in ("throughput", "iteration-time", "mem-allocated-bytes", "mem-max-allocated-bytes"):
            found = [event for event in events.Scalars(tag)]
            self.expect([event.step for event in found] == list(range(1, 13)), tag, found)
            self.expect(all(math.isfinite(event.value) and event.value > 0 for event in found), tag, found)
        texts = [tag for tag in events.Tags()["tensors"] if tag == "configuration"]
        self.expect(texts, "no configuration in", events.Tags())
        for tag in texts:
            text = tensor_util.make_ndarray(events.Tensors(tag)[-1].tensor_proto)
            self.expect(b"hidden_size = 32" in text.ravel()[0], "configuration", text)
        self.compare_histograms(events)

    def compare_histograms(self, events):
        tags = events.Tags()["histograms"]
        self.expect("weights/decoder.layers.0.mlp.linear_fc1.weight" in tags, "histograms", tags)
        for tag in tags:
            found = events.Histograms(tag)
            self.expect([event.step for event in found] == [6, 12], tag, [event.step for event in found])
            for value in (event.histogram_value for event in found):
                self.expect(sum(value.bucket) == value.num > 0, tag, value)
                self.expect(value.bucket_limit == sorted(value.bucket_limit), tag, value)


def main():
    with tempfile.TemporaryDirectory() as name:
        check = Check(sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(name))
        check.train("--fault_injection.kind=kill", "--fault_injection.iteration=7", codes=(-9,))
        check.train()
        check.compare()
        if check.failures:
            sys.exit(f"{check.failures} failures")
        print("TensorBoard reads every curve")


main()
