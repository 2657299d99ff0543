"""Writes a wheel of a folder with the package megatron_cpp.

usage: make_wheel.py FOLDER VERSION PLATFORM_TAG LICENSES OUTPUT_FOLDER
FOLDER contains the package, megatron_cpp/; LICENSES contains the licenses of the libraries in it. Prints the path of the
wheel. The content depends only on the files and on SOURCE_DATE_EPOCH.
"""

import base64
import hashlib
import os
import pathlib
import sys
import time
import zipfile

METADATA = """Metadata-Version: 2.1
Name: megatron-cpp
Version: {version}
Summary: Megatron-style pretraining of large language models
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{description}"""

WHEEL = """Wheel-Version: 1.0
Generator: megatron_cpp scripts/package.sh
Root-Is-Purelib: false
Tag: {tag}
"""

ENTRY_POINTS = """[console_scripts]
megatron_cpp = megatron_cpp.__main__:main
megatron_cpp-pretrain = megatron_cpp.__main__:pretrain
megatron_cpp-launch = megatron_cpp.__main__:launch
"""


def files_below(folder, prefix):
    """Returns (name in the wheel, content, is executable) of all files, sorted by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(prefix + path.relative_to(folder).as_posix(), path.read_bytes(), os.access(path, os.X_OK)) for path in paths]


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main():
    folder, version, platform, licenses, output = sys.argv[1:]
    tag = f"py3-none-{platform}"
    info = f"megatron_cpp-{version}.dist-info/"
    description = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    files = files_below(pathlib.Path(folder), "")
    files += files_below(pathlib.Path(licenses), info + "licenses/")
    for name, text in (("METADATA", METADATA.format(version=version, description=description)),
                       ("WHEEL", WHEEL.format(tag=tag)), ("entry_points.txt", ENTRY_POINTS)):
        files.append((info + name, text.encode(), False))
    record = "".join(record_line(name, content) for name, content, _ in files) + f"{info}RECORD,,\n"
    files.append((info + "RECORD", record.encode(), False))

    date = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]  # ZIP archives begin in 1980
    wheel = pathlib.Path(output) / f"megatron_cpp-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content, is_executable in files:
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if is_executable else 0o100644) << 16
            archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main()
