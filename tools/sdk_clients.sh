#!/bin/sh
# Makes .clients/python, a venv with the Python clients that tests/test_sdk_clients.py records and
# replays. Where no registry gives them, nothing is installed, that is said, and it ends with 0.
set -u
venv=.clients/python
pins=tests/sdk_clients.txt

# The pins of what is there lie beside it: an unchanged list is not installed again.
if cmp -s "$pins" "$venv/pins.txt"; then
  echo "sdk-clients: $venv is up to date"
  exit 0
fi

rm -rf "$venv"
mkdir -p .clients
if ! .venv/bin/python -m venv "$venv"; then
  echo "sdk-clients: no virtual environment can be made in $venv" >&2
  exit 1
fi
if said=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --only-binary :all: --retries 1 --timeout 30 -r "$pins" 2>&1); then
  cp "$pins" "$venv/pins.txt"
  echo "sdk-clients: $(du -sm "$venv" | cut -f 1) MB in $venv"
  exit 0
fi
rm -rf "$venv"
printf '%s\n' "$said" | grep -v '^WARNING: Location' | tail -n 3 >&2
echo "sdk-clients: nothing is installed, since the package registry does not give what $pins names;" \
  "tests/test_sdk_clients.py is skipped" >&2
