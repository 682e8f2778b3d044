#!/bin/sh
# Puts real command-line agents into .clients/bin: Claude Code from the wheel that carries it, Codex
# and Gemini CLI from npm. What a registry does not give is left out, and said.
set -u
mkdir -p .clients/bin .clients/work

if [ ! -x .clients/bin/claude ]; then
  if .venv/bin/python -m pip download --quiet --no-deps --dest .clients/work claude-agent-sdk \
    && .venv/bin/python -c "
import glob, zipfile
wheel = glob.glob('.clients/work/claude_agent_sdk-*.whl')[0]
with zipfile.ZipFile(wheel) as opened:
    opened.extract('claude_agent_sdk/_bundled/claude', '.clients/work')
"; then
    mv .clients/work/claude_agent_sdk/_bundled/claude .clients/bin/claude
    chmod +x .clients/bin/claude
  else
    echo "clients: no claude (the package registry does not give claude-agent-sdk)" >&2
  fi
  rm -rf .clients/work/*
fi

for pair in codex=@openai/codex gemini=@google/gemini-cli; do
  name=${pair%%=*}
  package=${pair#*=}
  [ -e ".clients/bin/$name" ] && continue
  if command -v npm >/dev/null 2>&1 \
    && npm install --silent --no-fund --no-audit --prefix .clients/npm "$package" >/dev/null 2>&1; then
    ln -sf "../npm/node_modules/.bin/$name" ".clients/bin/$name"
  else
    echo "clients: no $name (npm, or its registry, does not give $package)" >&2
  fi
done
ls .clients/bin
