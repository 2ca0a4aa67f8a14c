#!/bin/sh
# Stands for `etcd` in etcd's end-to-end suite: starts `synod serve`, which stands beside it, with the same flags. The suite
# waits for etcd's message "ready to serve client requests", which `synod serve` writes too, and ends the program by signals.
# `etcd --version` tells the version of the API that is served. Messages are JSON by default, as etcd's. Its gateway and its
# proxy, which stand before any server, are etcd's own.
synod="$(dirname "$0")/synod"
case "$*" in
    gateway\ * | grpc-proxy\ *) exec "$(dirname "$0")/etcd-proxy" "$@" ;;
    --version | -version) "$synod" version | sed -n 's/^etcd API.* /etcd Version: /p' ;;
    # Unquoted: run.py writes further flags there, in one line.
    *) exec "$synod" serve --log-format json $(cat "$(dirname "$0")/flags") "$@" ;;
esac
