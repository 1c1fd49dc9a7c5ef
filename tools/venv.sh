#!/usr/bin/env bash
# Make the virtual environment .venv and install this project into it, editable, with the given extras.
#
#     tools/venv.sh dev,onnx,parquet
#
# Compiles the kernel where there is a C compiler; PIP_CONSTRAINT=tools/constraints.txt takes the versions of CI.
# Needs only a Python of at least 3.11 (PYTHON names another one than python3). Debian and Ubuntu ship
# Python without ensurepip, so `python3 -m venv` alone cannot install pip there; then, in this order:
# uv, the system's own pip, and pip from PyPI by tools/get_pip.py are tried.
set -euo pipefail
cd "$(dirname "$0")/.."

extras=${1:?usage: tools/venv.sh EXTRA,EXTRA}
venv=.venv

say() { printf '%s\n' "$*" >&2; }

find_python() {
    local python
    for python in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    say "No Python of at least 3.11 found; install one, or name it: make PYTHON=/path/to/python3"
    return 1
}

has_pip() { "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

make_venv() {
    local python
    python=$(find_python)
    say "Making $venv with $("$python" --version) ..."
    "$python" -m venv "$venv" >/dev/null 2>&1 && has_pip && return
    # No ensurepip. A half-made folder is of no use to what follows.
    rm -rf "$venv"
    if command -v uv >/dev/null && uv venv --quiet --seed --python "$(command -v "$python")" "$venv" && has_pip; then
        return
    fi
    "$python" -m venv --clear --without-pip "$venv" || true
    if [ -x "$venv/bin/python" ]; then
        "$python" -m pip --python "$venv/bin/python" install --quiet pip >/dev/null 2>&1 && has_pip && return
        "$venv/bin/python" tools/get_pip.py 2>/dev/null && has_pip && return
    fi
    rm -rf "$venv"
    say "$python cannot make a virtual environment: sudo apt-get install python3-venv, then try again."
    return 1
}

if ! has_pip; then
    make_venv
fi
say "Installing graph-schedule-sim[$extras] into $venv ..."
# Most of what comes along is never imported: Python compiles a module when it first is.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --editable ".[$extras]"
# What the build leaves behind names every file of ours; pytest, whose plugin we have, would rewrite them all.
rm -rf graph_schedule_sim.egg-info
