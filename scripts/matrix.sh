#!/usr/bin/env bash
# Tests on several versions of PostgreSQL, one after the other:
#   matrix.sh VERSIONS ARGUMENT...
# VERSIONS is a list such as "14 18", the arguments are those of go test. Every
# version runs, also after one has failed; the exit status is 1 if any did. The
# servers are those of tools/postgres, see "setup.sh matrix".
set -euo pipefail
cd "$(dirname "$0")/.."

packages=$PWD/tools/postgres/node_modules
read -ra versions <<<"${1//,/ }"
shift
if ((${#versions[@]} == 0)); then
	echo 'matrix: no version given: say PG_VERSIONS="14 18"' >&2
	exit 1
fi
for version in "${versions[@]}"; do
	if [[ ! -d $packages/pg$version ]]; then
		echo "matrix: no PostgreSQL $version: choose PG_VERSIONS from those of tools/postgres/package.json" >&2
		exit 1
	fi
done

# As root the servers run as another user, who may be unable to reach this
# folder: a clone in /root, or in a private temporary folder. Give it a copy.
if [[ $(id -u) == 0 ]]; then
	copy=$(mktemp -d /tmp/outbox-matrix.XXXXXX)
	trap 'rm -rf "$copy"' EXIT
	for version in "${versions[@]}"; do
		cp -R "$packages/pg$version" "$copy/"
	done
	chmod -R a+rX "$copy"
	packages=$copy
fi

# The packages hold no clients: those of PATH are used, and skipWithoutPgDump of the
# tests says which fit. go test does not show that a test was skipped, so this does.
client=$(pg_dump --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
results=()
status=0
for version in "${versions[@]}"; do
	export OUTBOX_PG_BINDIR=$packages/pg$version/native/bin
	printf '== %s\n' "$("$OUTBOX_PG_BINDIR/postgres" --version)"
	if ((client < version || client >= 17 && version < 17)); then
		echo "pg_dump $client does not fit PostgreSQL $version: the test of dump and restore is skipped"
	fi
	start=$SECONDS result=passed
	go test "$@" || result=FAILED status=1
	results+=("$version $result in $((SECONDS - start)) s")
done
printf '== PostgreSQL %s\n' "${results[@]}"
exit $status
