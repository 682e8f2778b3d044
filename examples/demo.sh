#!/bin/sh
# Records a run of the embedded model, runs it live again, and replays it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$here/haiku.yaml" "$folder/plan.yaml"
cd "$folder"
unset BERNSTEIN_REPLAY_RUN_ID BERNSTEIN_REPLAY_ALLOW_LIVE_MISS BERNSTEIN_RECORD BERNSTEIN_SDD_DIR

head_of() { sed -n 's/^  "head": "\(.*\)",$/\1/p' "$1"; }

echo "== record: a live run on the embedded model"
BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml --model local:smollm2-135m --json > first.json
echo "   head $(head_of first.json)"
bernstein show latest

echo "== live again: the same plan, the same seed, the same model"
first=$(bernstein runs | sed -n '1s/ .*//p')
BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml --model local:smollm2-135m --json > second.json
echo "   head $(head_of second.json)"
if [ "$(head_of first.json)" = "$(head_of second.json)" ]; then
  echo "   the live runs have the same head, this time: nothing holds them to it"
else
  echo "   the live runs differ: what is live, and in which order, is not held to anything"
fi

echo "== replay: no model is asked"
BERNSTEIN_REPLAY_RUN_ID="$first" bernstein run plan.yaml --json > third.json
[ "$(head_of first.json)" = "$(head_of third.json)" ]
echo "   head $(head_of third.json)"
