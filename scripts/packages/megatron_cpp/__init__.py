"""Runs the program megatron_cpp, which this package contains."""

import pathlib
import subprocess

FOLDER = pathlib.Path(__file__).resolve().parent
PROGRAM = FOLDER / "bin" / "megatron_cpp"


def run(arguments, check=True):
    """Runs the program with these arguments and returns its exit code.

    With check, raises subprocess.CalledProcessError, whose returncode is the exit code, unless it is 0. The program
    prints to the standard output and error of this process. On Ctrl-C it saves a checkpoint, and run() waits for it.
    """
    command = [str(PROGRAM), *map(str, arguments)]
    with subprocess.Popen(command) as process:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                pass  # the terminal interrupts the program too
    if check and code != 0:
        raise subprocess.CalledProcessError(code, command)
    return code
