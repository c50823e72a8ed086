#!/bin/sh
# Prints what a small service links with Trapeze and with River: modules, and the size of the stripped program.
set -e
cd "$(dirname "$0")/.."
mkdir -p bin
(cd ../.. && go build -trimpath -ldflags '-s -w' -o tools/peers/bin/lean-trapeze ./internal/floors/testdata/service)
go build -trimpath -ldflags '-s -w' -o bin/lean-river ./lean/river
for p in trapeze river; do
  echo "$p: $(go version -m bin/lean-$p | grep -c '^	dep') modules, $(wc -c < bin/lean-$p) bytes"
done
