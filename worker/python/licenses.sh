#!/bin/bash
# Licence texts of libraries that the wheel carries.
#   worker/python/licenses.sh FOLDER LIBRARY...
# Writes FOLDER/PACKAGE.txt for the Debian package of each library: its copyright file and
# the common licences to which that refers. Fails when a library has none.
set -eu

out=$1
shift
mkdir -p "$out"
for library in "$@"; do
    package=$(dpkg-query -S "*/$(basename "$library")" 2>/dev/null | head -n 1 | cut -d: -f1) || true
    text=/usr/share/doc/$package/copyright
    if [ -z "$package" ] || [ ! -r "$text" ]; then
        echo "licenses.sh: $library: no copyright file of a package is here; the wheel needs it" >&2
        exit 1
    fi
    {
        printf '%s, of the Debian package %s\n\n' "$(basename "$library")" "$package"
        cat "$text"
        grep -o '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' "$text" | sort -u |
            while read -r common; do
                [ -r "$common" ] || continue
                printf '\n---- %s\n\n' "$common"
                cat "$common"
            done
    } >"$out/$package.txt"
done
