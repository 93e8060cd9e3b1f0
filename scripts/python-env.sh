#!/bin/bash
# Python environments for the tests of the bindings; made once, kept outside the tree.
#   scripts/python-env.sh [--check] NAME      prints the path of the interpreter
# NAME  torch-debian   Debian's python3 with python3-torch (1.13 on Debian 12)
#       torch-current  a virtual environment with the newest torch from PyPI
#       tf-current     the same with the newest TensorFlow (CPU), its Keras 3, tf_keras, and JAX
#       tf-keras2      the same with TensorFlow 2.13 and its Keras 2
# --check  make nothing: status 1 when it is not there yet
# Environments lie in ${XDG_CACHE_HOME:-~/.cache}/hvd.
#
# PyPI's torch for x86-64 Linux is the CUDA build (0.5 GB) and depends on some 3 GB of CUDA
# libraries. Its CPU half needs none of them, but the loader wants every library named in
# its ELF headers. So torch is installed without its dependencies, and each CUDA library
# gets a stub of a few KB beside torch's own that answers every call with
# cudaErrorNoDevice (100): torch.cuda.is_available() is then False.
set -u

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd
system_python=${HVD_SYSTEM_PYTHON:-/usr/bin/python3}
check_only=
legacy_keras= # the package tf_keras, too
[ "${1:-}" = --check ] && { check_only=1; shift; }
name=${1:-}

fail() {
    echo "python-env.sh: $*" >&2
    exit 1
}

works() {
    [ -x "$1" ] && "$1" -c "import ${2:-torch}, pytest, cloudpickle" >/dev/null 2>&1
}

# Stub every library that the shared objects in $1 need and that is neither there nor one
# of the C and C++ run time.
stub_cuda() {
    local lib=$1 work wanted soname
    work=$(mktemp -d) || return 1
    for so in "$lib"/*.so*; do
        readelf -d "$so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
    done | sort -u | while read -r soname; do
        case $soname in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | ld-linux* | \
            libstdc++.so.* | libgcc_s.so.* | libutil.so.* | libz.so.* | libquadmath.so.*) ;;
        *) [ -e "$lib/$soname" ] || echo "$soname" ;;
        esac
    done >"$work/missing"
    # what torch's libraries import and none of them, nor the C and C++ run time, exports
    for so in "$lib"/*.so*; do nm -D --undefined-only "$so"; done 2>/dev/null |
        awk '$1 == "U" { sub(/@.*/, "", $2); print $2 }' | sort -u >"$work/imports"
    {
        for so in "$lib"/*.so*; do nm -D --defined-only "$so"; done
        ldconfig -p | awk '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|quadmath)\.so\.|ld-linux-x86-64/ { print $NF }' |
            sort -u | xargs -r -n 1 nm -D --defined-only
    } 2>/dev/null | awk 'NF >= 3 { sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exports"
    # the interpreter's own symbols are not stubbed
    wanted=$(comm -23 "$work/imports" "$work/exports" | grep -v -E '^_?Py' |
        grep -E '^[A-Za-z_][A-Za-z0-9_]*$')
    {
        for symbol in $wanted; do printf 'long %s(void) { return 100; }\n' "$symbol"; done
    } >"$work/stub.c"
    printf 'long hvd_stub_without_symbols(void) { return 100; }\n' >"$work/empty.c"
    # all symbols live in one library; the others only need to exist
    gcc -w -fno-builtin -O1 -shared -fPIC -Wl,-soname,libhvd_no_cuda.so -o "$lib/libhvd_no_cuda.so" "$work/stub.c" ||
        { rm -rf "$work"; return 1; }
    while read -r soname; do
        gcc -w -O1 -shared -fPIC -Wl,-soname,"$soname" -Wl,--no-as-needed \
            -Wl,-rpath,"\$ORIGIN" -o "$lib/$soname" "$work/empty.c" \
            -L"$lib" -l:libhvd_no_cuda.so || { rm -rf "$work"; return 1; }
    done <"$work/missing"
    rm -rf "$work"
}

make_current() {
    local venv=$1 lib
    rm -rf "$venv.part"
    "$system_python" -m venv "$venv.part" || return 1
    "$venv.part/bin/pip" install -q --no-cache-dir --no-deps torch || return 1
    # what torch imports, without what only its GPU half wants
    "$venv.part/bin/pip" install -q --no-cache-dir filelock typing_extensions sympy networkx \
        jinja2 fsspec numpy pytest cloudpickle mypy 'setuptools>=77' wheel || return 1
    lib=$(echo "$venv.part"/lib/python3.*/site-packages/torch/lib)
    if [ -e "$lib/libtorch_cuda.so" ]; then
        stub_cuda "$lib" || return 1
    fi
    rm -rf "$venv" && "$system_python" -m venv --without-pip "$venv" &&
        cp -a "$venv.part/lib" "$venv/" && rm -rf "$venv.part"
}

make_tensorflow() {
    local venv=$1
    shift
    rm -rf "$venv.part"
    "$system_python" -m venv "$venv.part" || return 1
    "$venv.part/bin/pip" install -q --no-cache-dir "$@" pytest cloudpickle || return 1
    # it wants the package tensorflow, of which tensorflow-cpu is a smaller build
    [ -z "$legacy_keras" ] ||
        "$venv.part/bin/pip" install -q --no-cache-dir --no-deps tf_keras || return 1
    rm -rf "$venv" && "$system_python" -m venv --without-pip "$venv" &&
        cp -a "$venv.part/lib" "$venv/" && rm -rf "$venv.part"
}

# Environment $1 with the packages $3..., made if it does not import $2
tensorflow() {
    local venv=$cache/$1 imports=$2
    shift 2
    works "$venv/bin/python" "$imports" && { echo "$venv/bin/python"; exit 0; }
    [ -n "$check_only" ] && exit 1
    mkdir -p "$cache" || exit 1
    exec 9>"$cache/lock-tensorflow" && flock 9
    works "$venv/bin/python" "$imports" && { echo "$venv/bin/python"; exit 0; }
    make_tensorflow "$venv" "$@" >&2 || fail "cannot make $venv"
    works "$venv/bin/python" "$imports" ||
        fail "$venv does not import $imports: $("$venv/bin/python" -c "import $imports" 2>&1 | tail -n 1)"
    echo "$venv/bin/python"
}

case $name in
tf-current)
    legacy_keras=1
    tensorflow "$name" 'tensorflow, jax, tf_keras' tensorflow-cpu jax
    ;;
tf-keras2) tensorflow "$name" 'tensorflow' 'tensorflow-cpu==2.13.*' ;;
torch-debian)
    works "$system_python" && { echo "$system_python"; exit 0; }
    [ -n "$check_only" ] && exit 1
    command -v apt-get >/dev/null || fail "install torch, pytest and cloudpickle for $system_python"
    apt-get install -y -qq python3-torch python3-pytest python3-cloudpickle python3-venv \
        >&2 || fail "cannot install python3-torch, python3-pytest, python3-cloudpickle"
    works "$system_python" || fail "$system_python still does not import torch"
    echo "$system_python"
    ;;
torch-current)
    venv=$cache/torch-current
    works "$venv/bin/python" && { echo "$venv/bin/python"; exit 0; }
    [ -n "$check_only" ] && exit 1
    mkdir -p "$cache" || exit 1
    exec 9>"$cache/lock" && flock 9
    works "$venv/bin/python" && { echo "$venv/bin/python"; exit 0; }
    make_current "$venv" >&2 || fail "cannot make $venv"
    works "$venv/bin/python" || fail "$venv does not import torch: $("$venv/bin/python" -c 'import torch' 2>&1 | tail -n 1)"
    echo "$venv/bin/python"
    ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
