#!/bin/sh
# Makes .clients/python, a venv with the Python clients that tests/test_sdk_clients.py records and
# replays; or another VENV with what a list of PINS names, for other TESTS.
# Where no registry gives them, nothing is installed, that is said, and it ends with 0.
set -u
venv=${1:-.clients/python}
pins=${2:-tests/sdk_clients.txt}
tests=${3:-tests/test_sdk_clients.py}

# The pins of what is there lie beside it: an unchanged list is not installed again.
if cmp -s "$pins" "$venv/pins.txt"; then
  echo "$venv is up to date"
  exit 0
fi

rm -rf "$venv"
mkdir -p .clients
if ! .venv/bin/python -m venv "$venv"; then
  echo "no virtual environment can be made in $venv" >&2
  exit 1
fi
if said=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --only-binary :all: --retries 1 --timeout 30 -r "$pins" 2>&1); then
  cp "$pins" "$venv/pins.txt"
  echo "$(du -sm "$venv" | cut -f 1) MB in $venv"
  exit 0
fi
rm -rf "$venv"
printf '%s\n' "$said" | grep -v '^WARNING: Location' | tail -n 3 >&2
echo "nothing is installed, since the package registry does not give what $pins names;" \
  "what needs them in $tests is skipped" >&2
