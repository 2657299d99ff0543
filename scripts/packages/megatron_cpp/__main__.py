"""Commands megatron_cpp, megatron_cpp-pretrain and megatron_cpp-launch: become the program or its script."""

import os
import sys

from megatron_cpp import FOLDER, PROGRAM


def execute(program):
    os.execv(program, [str(program), *sys.argv[1:]])


def main():
    execute(PROGRAM)


def pretrain():
    execute(FOLDER / "share/megatron_cpp/scripts/pretrain.sh")


def launch():
    execute(FOLDER / "share/megatron_cpp/scripts/launch.sh")


if __name__ == "__main__":
    main()
