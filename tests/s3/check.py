"""Trains with data and checkpoints in moto, an S3 server that verifies signatures and permissions.

usage: check.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if moto is not installed. Compares with a run with local files, reads the checkpoints
with boto3, and ends the server during a run.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

try:
    import boto3
    import moto.server  # noqa: F401
except ImportError:
    print("SKIPPED: this Python has no moto (python3 -m venv ~/peer && ~/peer/bin/pip install 'moto[server]',"
          " then S3_PYTHON=~/peer/bin/python)")
    sys.exit(77)

POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
SAVE = "s3://bucket/runs/a b+c"  # characters that signatures encode


class Server:
    """Running moto server. Until `enable_keys` has created a user, it accepts requests without a signature."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        environment = dict(os.environ, INITIAL_NO_AUTH_ACTION_COUNT="3")
        self.process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(self.port)],
                                        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(300):
            try:
                urllib.request.urlopen(self.url + "/moto-api/", timeout=1)
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("moto does not answer")

    def client(self, service, key="none", secret="none"):
        return boto3.client(service, endpoint_url=self.url, region_name="us-east-1", aws_access_key_id=key,
                            aws_secret_access_key=secret)

    def enable_keys(self):
        iam = self.client("iam")
        iam.create_user(UserName="user")
        iam.put_user_policy(UserName="user", PolicyName="all", PolicyDocument=POLICY)
        pair = iam.create_access_key(UserName="user")["AccessKey"]
        return pair["AccessKeyId"], pair["SecretAccessKey"]

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Check:
    def __init__(self, program, source, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        self.source = pathlib.Path(source)
        self.server = Server()
        self.key, self.secret = self.server.enable_keys()
        self.s3 = self.server.client("s3", self.key, self.secret)
        self.environment = dict(os.environ, AWS_ACCESS_KEY_ID=self.key, AWS_SECRET_ACCESS_KEY=self.secret,
                                AWS_ENDPOINT_URL_S3=self.server.url, AWS_MAX_ATTEMPTS="4",
                                MEGATRON_CPP_CACHE=str(self.folder / "cache"))

    def run(self, *args, code=0, **variables):
        result = subprocess.run([self.program, *args], env=dict(self.environment, **variables), capture_output=True,
                                text=True, check=False)
        if result.returncode != code:
            raise SystemExit(f"{' '.join(args)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
        if self.secret in result.stdout + result.stderr:
            raise SystemExit("the output contains the secret key")
        return result.stdout + result.stderr

    def prepare(self):
        text = (self.source / "data/tinyshakespeare.txt").read_bytes()[:60000]
        (self.folder / "train.txt").write_bytes(text)
        tokenizer = self.folder / "tokenizer.model"
        self.run("tokenizer", "train", f"--input={self.folder}/train.txt", f"--output={tokenizer}", "--vocab_size=400")
        self.s3.create_bucket(Bucket="bucket")
        self.s3.put_object(Bucket="bucket", Key="text/train 1.txt", Body=text)
        self.run("preprocess", "--input=s3://bucket/text/*.txt", f"--output_prefix={self.folder}/train",
                 f"--tokenizer_model={tokenizer}", "--text_document=paragraph")
        for suffix in ("bin", "idx", "json"):
            self.s3.upload_file(f"{self.folder}/train_text_document.{suffix}", "bucket", f"data/d.{suffix}")
        toml = (self.source / "tests/support/small_training.toml").read_text()
        (self.folder / "run.toml").write_text(toml.replace("@folder@", str(self.folder)))

    def pretrain(self, save, *more, **options):
        # 3M parameters: the file with the optimizer states is uploaded in several parts.
        return self.run("pretrain", f"{self.folder}/run.toml", f"--checkpoint.save={save}", "--model.hidden_size=256",
                        "--model.num_layers=4", *more, **options)

    def compare_with_local_run(self):
        local = f"{self.folder}/local"
        self.pretrain(local)
        self.pretrain(SAVE, "--data.data_path=s3://bucket/data/d", "--training.exit_interval=4")
        self.pretrain(SAVE, "--data.data_path=s3://bucket/data/d", "--checkpoint.async_save")
        text = self.run("checkpoint", "diff", local, SAVE)
        assert " tensors compared, 0 differ" in text, text
        assert "intact" in self.run("checkpoint", "verify", SAVE)
        keys = [entry["Key"] for entry in self.s3.list_objects_v2(Bucket="bucket", Prefix="runs/")["Contents"]]
        assert "runs/a b+c/latest" in keys and "runs/a b+c/metrics.jsonl" in keys, keys
        shards = [entry for entry in self.s3.list_objects_v2(Bucket="bucket", Prefix="runs/")["Contents"]
                  if entry["Key"].endswith(".h5")]
        assert any(entry["ETag"].strip('"').endswith("-5") for entry in shards), shards  # uploaded in 5 parts
        assert not self.s3.list_multipart_uploads(Bucket="bucket").get("Uploads"), "uploads in progress remain"
        copy = self.folder / "copy/iter_0000012"
        copy.mkdir(parents=True)
        for key in keys:
            if "/iter_0000012/" in key:
                self.s3.download_file("bucket", key, str(copy / key.split("/")[-1]))
        assert " tensors compared, 0 differ" in self.run("checkpoint", "diff", local, str(copy))

    def reject_wrong_keys(self):
        text = self.run("checkpoint", "ls", SAVE, code=2, AWS_SECRET_ACCESS_KEY="x" * 40)
        assert "check the credentials" in text, text
        text = self.run("checkpoint", "ls", "s3://missing-bucket/runs", code=2)
        assert "create the bucket" in text, text

    def end_server_during_a_run(self):
        command = [self.program, "pretrain", f"{self.folder}/run.toml", "--checkpoint.save=s3://bucket/runs/killed",
                   "--data.data_path=s3://bucket/data/d", "--training.train_iters=100000", "--checkpoint.save_interval=1"]
        run = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(600):
            if "Contents" in self.s3.list_objects_v2(Bucket="bucket", Prefix="runs/killed/iter_0000003/"):
                break
            time.sleep(0.1)
        self.server.kill()
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 75, (run.returncode, errors)
        assert "failed 4 times" in errors, errors


def main():
    program, source = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(program, source, folder)
        try:
            check.prepare()
            check.compare_with_local_run()
            check.reject_wrong_keys()
            check.end_server_during_a_run()
        finally:
            check.server.kill()
    print("moto: data and checkpoints are those of a run with local files")


if __name__ == "__main__":
    main()
