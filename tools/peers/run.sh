#!/bin/sh
# Builds the adapters and runs them on a throw-away PostgreSQL. Options: see README.md
#   ./run.sh -peers trapeze,river -workloads W1,W4C -rounds 3 -out results.jsonl
#   ALSO=18 ./run.sh ...   runs Trapeze on PostgreSQL 18 as well, in the same rounds
set -e
cd "$(dirname "$0")"
mkdir -p bin
for p in trapeze river gue dbos driver; do go build -o bin/$p ./$p; done
# Hatchet has 130 dependencies: a module apart, so that it changes no other peer's dependencies, and built only for runs that want it.
rm -f bin/hatchet
case "$*" in
*hatchet*) (cd hatchet && go build -o ../bin/hatchet .) ;;
*-peers*) ;;
*) (cd hatchet && go build -o ../bin/hatchet .) || echo "the adapter of Hatchet cannot be built" >&2 ;;
esac
for p in graphile pgboss; do
  [ -d $p/node_modules ] || (cd $p && npm install --no-audit --no-fund --silent)
  printf '#!/bin/sh\nd=$(cd "$(dirname "$0")/.." && pwd); exec "$d/%s/node_modules/.bin/node" "$d/%s/main.mjs"\n' $p $p > bin/$p
  chmod +x bin/$p
done
if [ -n "$ALSO" ]; then
  set -- -also "$(../../.ci/programs "$ALSO" "$PWD/.pg")" "$@"
fi
exec bin/driver "$@"
