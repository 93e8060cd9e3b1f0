#!/bin/bash
# Install what building, testing, linting and benchmarking need; only what is missing.
#   scripts/deps.sh [--check] [--test] [--hosts] [--lint] [--bench]
# Without a group: what `make` and the demo need. Each group adds its packages to that.
# --check only reports; status 0: nothing is missing, 1: something is.
# Package names are Debian 12's. The Ubuntu 24.04 names beside them have NOT been run.
set -u

#          Debian 12                 Ubuntu 24.04 (not run)
base='     build-essential           build-essential
           pkg-config                pkg-config
           libuv1-dev                libuv1-dev
           libhwloc-dev              libhwloc-dev
           libsodium-dev             libsodium-dev
           libprotobuf-c-dev         libprotobuf-c-dev
           protobuf-c-compiler       protobuf-c-compiler
           libpopt-dev               libpopt-dev
           libyaml-dev               libyaml-dev
           libjansson-dev            libjansson-dev
           libxxhash-dev             libxxhash-dev
           uthash-dev                uthash-dev
           zlib1g-dev                zlib1g-dev'
testing='  libcriterion-dev          libcriterion-dev
           python3                   python3
           procps                    procps
           gdb                       gdb
           tmux                      tmux
           iproute2                  iproute2
           openssh-client            openssh-client
           mandoc                    mandoc
           clang                     clang
           libclang-rt-14-dev        libclang-rt-18-dev'
# for the tests with several hosts; mind that Debian starts this service
hosting='  openssh-server            openssh-server'
linting='  clang                     clang
           clang-format              clang-format
           clang-tidy                clang-tidy
           shellcheck                shellcheck
           libclang-rt-14-dev        libclang-rt-18-dev
           python3                   python3'
bench='    openmpi-bin               openmpi-bin
           libopenmpi-dev            libopenmpi-dev
           mpich                     mpich
           libmpich-dev              libmpich-dev
           python3                   python3
           python3-torch             python3-torch'

usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0"
}

check_only=
table=$base
for arg in "$@"; do
    case $arg in
    --check) check_only=1 ;;
    --test) table+=$'\n'$testing ;;
    --hosts) table+=$'\n'$hosting ;;
    --lint) table+=$'\n'$linting ;;
    --bench) table+=$'\n'$bench ;;
    -h | --help) usage; exit 0 ;;
    *) echo "deps.sh: unknown option '$arg'; see scripts/deps.sh --help" >&2; exit 2 ;;
    esac
done

column=1
# shellcheck disable=SC1091
[ -r /etc/os-release ] && [ "$(. /etc/os-release && echo "${ID:-}")" = ubuntu ] && column=2
wanted=$(printf '%s\n' "$table" | awk -v c=$column '{ print $c }' | sort -u)

if ! command -v dpkg-query >/dev/null; then
    echo "deps.sh: no dpkg here; install the equivalents of:" $wanted >&2
    exit 1
fi

missing=
for package in $wanted; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
        missing+=" $package"
done

if [ -z "$missing" ]; then
    echo "deps.sh: nothing is missing"
    exit 0
fi
if [ -n "$check_only" ]; then
    echo "deps.sh: missing:$missing"
    exit 1
fi

if [ "$(id -u)" = 0 ]; then
    root=
elif command -v sudo >/dev/null; then
    root=sudo
else
    echo "deps.sh: needs root or sudo to install:$missing" >&2
    exit 1
fi
echo "deps.sh: installing:$missing"
$root apt-get update -qq || echo "deps.sh: apt-get update failed; trying with the lists that are here" >&2
# shellcheck disable=SC2086
if ! $root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $missing; then
    echo "deps.sh: apt-get could not install:$missing" >&2
    exit 1
fi
