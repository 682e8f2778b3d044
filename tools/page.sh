#!/bin/sh
# Checks the modules of the web page: their types (TypeScript reads the JSDoc) and their format. Brings
# axe too, which tests/test_page.py holds the page against.
# Where npm or its registry gives nothing, nothing is checked, that is said, and it ends with 0.
set -u
page=src/bernstein/show/page
tools=.clients/page
if [ ! -x "$tools/node_modules/.bin/tsc" ]; then
  mkdir -p "$tools"
  if ! { command -v npm >/dev/null 2>&1 && npm install --silent --no-fund --no-audit \
    --prefix "$tools" typescript@7.0.2 prettier@3.10.1 axe-core@4.14.1 >/dev/null 2>&1; }; then
    echo "the page's modules are not checked: npm, or its registry, gives no typescript" >&2
    exit 0
  fi
fi
"$tools/node_modules/.bin/tsc" --checkJs --allowJs --noEmit --strict --noUnusedLocals --skipLibCheck \
  --target es2023 --lib es2023,dom,dom.iterable --module esnext "$page/main.js" "$page/offline.js" \
  && "$tools/node_modules/.bin/prettier" --log-level warn --print-width 110 --check "$page/*.js"
