#!/usr/bin/env bash
# Makes what the tests in this folder compare with: a Python environment in interop/.venv and the
# Rust reference in interop/reference/target. Says on standard output which variables to export;
# in the project's own tree the tests find both without them. Needs python3 (3.11 or later) and
# cargo. Quick where nothing changed since the last time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
here=$PWD

venv=$here/.venv
python=$venv/bin/python
if ! cmp -s requirements.txt "$venv/installed.txt" || ! "$python" -c '' 2>/dev/null; then
	rm -rf "$venv"
	"${PYTHON:-python3}" -m venv "$venv" >&2
	"$python" -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt >&2
	"$python" -c 'import huggingface_hub, ml_dtypes, numpy, safetensors' >&2
	cp requirements.txt "$venv/installed.txt" # last: a run that was cut short starts again
fi

cargo build --quiet --release --locked \
	--manifest-path reference/Cargo.toml --target-dir reference/target >&2
reference=$here/reference/target/release/safetensors-reference

printf 'export SAFETENSORS_PYTHON=%q\n' "$python"
printf 'export SAFETENSORS_REFERENCE=%q\n' "$reference"
