#!/usr/bin/env bash
# All checks that need no database. Each runs, also after one has failed; the
# exit status is 1 if any did.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

root=$PWD
tools=$root/bin/tools
failed=()

step() {
	local name=$1 start=$SECONDS
	shift
	printf '== %s\n' "$name"
	if ! "$@"; then
		printf -- '-- FAILED: %s\n' "$name"
		failed+=("$name")
	fi
	printf -- '-- %s s\n' "$((SECONDS - start))"
}

build_tools() { go -C tools build -o "$tools/" tool ./vulngate; }

# The modules beside the main one: programs that nobody imports.
modules=(tools bench/peers bench/plot)

# They are linted apart, with the same rules.
lint() {
	local module status=0
	"$tools/golangci-lint" run ./... || status=1
	for module in "${modules[@]}"; do
		(cd "$module" && "$tools/golangci-lint" run --config "$root/.golangci.yml" ./...) || status=1
	done
	return "$status"
}

# in_modules runs a command in each module, the main one too.
in_modules() {
	local module status=0
	for module in . "${modules[@]}"; do
		(cd "$module" && "$@") || status=1
	done
	return "$status"
}

# Migrations are plain SQL files that squawk reads in the order of their names.
# Left out, for all files: the timeouts (the migrator sets them, and psql users
# their own), re-runnable statements (a file that fails is rolled back whole,
# and one that was applied must not run twice unnoticed) and 64-bit counters
# (ids are; attempts has a limit far below). A down file drops what its up file
# made.
squawk() {
	local bin=tools/node_modules/@squawk-cli/linux-x64/bin/squawk
	local leave_out=require-lock-timeout,require-statement-timeout,prefer-robust-stmts,prefer-bigint-over-int
	local flags=(--pg-version 14.0 --assume-in-transaction --reporter gcc)
	if [[ ! -x $bin ]]; then
		scripts/setup.sh npm || return 1
		if command -v npm >/dev/null; then
			npm ci --prefix tools --no-audit --no-fund --loglevel=error || return 1
		fi
	fi
	if [[ ! -x $bin ]]; then
		echo "SQL not checked: no squawk here (it needs npm, and Linux on x86-64)"
		[[ ${CI:-} != true ]]
		return
	fi
	"$bin" "${flags[@]}" --exclude "$leave_out" trigger.sql publication.sql migrations/*.up.sql &&
		"$bin" "${flags[@]}" --exclude "$leave_out,ban-drop-table" migrations/*.down.sql
}

# govulncheck's database, made from the module that holds it: as fixed as the
# tools are, and no other server to reach. Raise golang.org/x/vulndb in
# tools/go.mod to learn of newer vulnerabilities.
vulnerabilities() {
	local source db
	go -C tools mod download golang.org/x/vulndb || return 1
	source=$(go -C tools list -m -f '{{.Dir}}' golang.org/x/vulndb) || return 1
	db=$tools/vulndb${source##*vulndb}
	if [[ ! -d $db ]]; then
		"$tools/indexdb" -vulns "$source/data/osv" -out "$db.new" && mv "$db.new" "$db" || return 1
	fi
	"$tools/govulncheck" -db "file://$db" -format json ./... | "$tools/vulngate"
}

shell_scripts() {
	if ! command -v shellcheck >/dev/null; then
		echo "not checked: shellcheck is not installed"
		return
	fi
	shellcheck scripts/*.sh .ci/run
}

step "build the tools" build_tools
step "go vet" in_modules go vet ./...
step "gofumpt" "$tools/golangci-lint" fmt --diff
step "golangci-lint" lint
step "squawk: migrations, trigger.sql and publication.sql" squawk
step "govulncheck" vulnerabilities
step "go mod tidy" in_modules go mod tidy -diff
step "shellcheck" shell_scripts
step "go test of the tools" go -C tools test ./...

if ((${#failed[@]})); then
	printf '%s of the checks failed:' "${#failed[@]}"
	printf ' [%s]' "${failed[@]}"
	printf '\n'
	exit 1
fi
echo "all checks passed"
