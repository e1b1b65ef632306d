#!/bin/sh
# Sees to it that the tests of the web page find a browser. Does nothing when there is one.
# Usage: install_chromium.sh <folder with python>
set -u
bin=${1:?which folder is python in?}
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
playwrights_own() {
    "$bin/python" - <<'PY'
import pathlib, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    sys.exit(not pathlib.Path(playwright.chromium.executable_path).exists())
PY
}
playwrights_own 2>/dev/null && exit 0

with_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then
        root=""
    elif sudo -n true 2>/dev/null; then
        root="sudo -n"
    else
        return 1
    fi
    echo "Installing chromium for the tests of the web page"
    # The lists may be too old to name a package that is still there.
    export DEBIAN_FRONTEND=noninteractive
    install="$root apt-get install --yes --quiet --no-install-recommends chromium"
    { $install || { $root apt-get update --quiet && $install; }; } >/dev/null && command -v chromium >/dev/null 2>&1
}

with_apt && exit 0
"$bin/python" -m playwright install chromium && playwrights_own && exit 0
echo "The tests of the web page need Chromium, and it could not be installed; they will fail." >&2
echo "On Debian or Ubuntu: sudo apt-get install chromium" >&2
echo "Elsewhere: $bin/python -m playwright install --with-deps chromium" >&2
exit 0
