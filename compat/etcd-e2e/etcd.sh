#!/bin/sh
# Stands for `etcd` in etcd's end-to-end suite: starts `synod serve`, which stands beside it, with the same flags. The suite
# waits for etcd's message "ready to serve client requests", which `synod serve` writes too, and ends the program by signals.
# `etcd --version` tells the version of the API that is served.
synod="$(dirname "$0")/synod"
case "$*" in
    --version | -version) "$synod" version | sed -n 's/^etcd API.* /etcd Version: /p' ;;
    *) exec "$synod" serve "$@" ;;
esac
