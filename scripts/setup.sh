#!/bin/sh
# Finds or installs what a make target needs: any of
#   postgres   the server binaries of PostgreSQL 14 or newer
#   compiler   a C compiler, for the race detector
#   pgbouncer  PgBouncer, for the tests of listening through a pooler
#   npm        for the SQL linter
#   matrix     the servers of make test-matrix: packages of npm, in tools/postgres
# It installs packages with the system's package manager, as root or through
# "sudo -n", and nothing else: no cluster is made, no service is started. Where it
# cannot, it says in one line what to do.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
	say "$*"
	exit 1
}

# as_root COMMAND... runs a command as root without ever asking for a password.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
		sudo -n "$@"
	else
		return 1
	fi
}

manager() {
	for m in apt-get dnf apk brew; do
		if command -v "$m" >/dev/null; then
			echo "$m"
			return
		fi
	done
}

# packages APT DNF APK BREW installs the packages named for this system, each
# argument a list, and fails where there is no way.
# shellcheck disable=SC2086 # the lists are meant to be split
packages() {
	m=$(manager)
	[ "$m" = brew ] || as_root true || return 1
	case $m in
	apt-get)
		say "installing $1"
		as_root apt-get update -qq &&
			as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $1 >/dev/null
		;;
	dnf)
		say "installing $2"
		as_root dnf install -y -q $2
		;;
	apk)
		say "installing $3"
		as_root apk add --quiet --no-progress $3
		;;
	brew)
		say "installing $4"
		brew install --quiet $4
		;;
	*) return 1 ;;
	esac >&2
}

by_hand() {
	case $(manager) in
	apt-get) echo "sudo apt-get install $1" ;;
	dnf) echo "sudo dnf install $2" ;;
	apk) echo "sudo apk add $3" ;;
	brew) echo "brew install $4" ;;
	*) echo "install $1 (Debian's name) with your package manager" ;;
	esac
}

# Debian makes and starts a cluster along with the server. It is told not to,
# for the time of this installation only.
install_postgres() {
	conf=/etc/postgresql-common/createcluster.conf
	if [ "$(manager)" = apt-get ] && packages postgresql-common '' '' '' && [ -f "$conf" ]; then
		as_root cp -p "$conf" "$conf.outbox-setup"
		trap 'as_root mv "$conf.outbox-setup" "$conf"' EXIT
		echo 'create_main_cluster = false' | as_root tee -a "$conf" >/dev/null
	fi
	packages postgresql postgresql-server postgresql postgresql@17
}

setup_postgres() {
	go build -o bin/ ./scripts/pgbindir || die "cannot build scripts/pgbindir, see above"
	if ! bindir=$(bin/pgbindir 2>/dev/null); then
		if [ -n "${OUTBOX_PG_BINDIR:-}" ]; then
			die "OUTBOX_PG_BINDIR=$OUTBOX_PG_BINDIR holds no initdb and postgres: correct it or unset it"
		fi
		if ! install_postgres || ! bindir=$(bin/pgbindir); then
			die "no PostgreSQL server binaries: run \"$(by_hand postgresql postgresql-server postgresql postgresql@17)\", or set OUTBOX_PG_BINDIR to the folder of initdb"
		fi
	fi
	version=$("$bindir/postgres" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
	if [ "$version" -lt 14 ]; then
		die "PostgreSQL $version in $bindir is too old: install 14 or newer and set OUTBOX_PG_BINDIR to the folder of its initdb"
	fi
}

setup_compiler() {
	cc=$(go env CC)
	command -v "${cc%% *}" >/dev/null && return
	packages 'gcc libc6-dev' gcc 'gcc musl-dev' gcc && command -v "${cc%% *}" >/dev/null && return
	optional "no C compiler ($cc) for the race detector: run \"$(by_hand 'gcc libc6-dev' gcc 'gcc musl-dev' gcc)\""
}

have_pgbouncer() { command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; }

# Debian starts a service along with the program. It is told not to, for the time
# of this installation only.
install_pgbouncer() (
	policy=/usr/sbin/policy-rc.d
	if [ "$(manager)" = apt-get ] && [ ! -e "$policy" ] && as_root true; then
		trap 'as_root rm -f "$policy"' EXIT
		printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
		as_root chmod +x "$policy"
	fi
	packages pgbouncer pgbouncer pgbouncer pgbouncer
)

# Some systems have no package of it, and nothing else depends on it: the tests
# that need it say that they were skipped, also in CI.
setup_pgbouncer() {
	have_pgbouncer && return
	install_pgbouncer && have_pgbouncer && return
	say "no PgBouncer for the tests of poolers: run \"$(by_hand pgbouncer pgbouncer pgbouncer pgbouncer)\"; going on without it"
}

have_npm() {
	command -v npm >/dev/null && return
	packages npm npm npm node && command -v npm >/dev/null
}

setup_npm() {
	have_npm || optional "no npm for the SQL linter: run \"$(by_hand npm npm npm node)\""
}

# The packages keep the symbolic links of their libraries in a file; a script of
# theirs, the only one that is run, makes them and is silent when it cannot.
# Hence the trial of each program. The servers run as another user than root,
# hence the umask. The copy of the lock file says that everything is there.
install_matrix() (
	umask 022
	npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --loglevel=error >&2 || exit
	for pg in "$PWD/$1"/node_modules/pg*; do
		cd "$pg" && node scripts/hydrate-symlinks.js && native/bin/postgres --version >/dev/null &&
			native/bin/initdb --version >/dev/null || exit
	done
	cp "$2" "$3"
)

setup_matrix() {
	servers=tools/postgres
	lock=$servers/package-lock.json installed=$servers/node_modules/installed.json
	cmp -s "$lock" "$installed" && return
	instead="run \"OUTBOX_PG_BINDIR=FOLDER make test\" with the folder of initdb of each version"
	if [ "$(uname -sm)" != "Linux x86_64" ]; then
		die "the servers of the matrix are for Linux on x86-64, not for $(uname -sm): $instead"
	fi
	have_npm || die "no npm for the servers of the matrix: run \"$(by_hand npm npm npm node)\""
	say "installing the servers of the matrix in $servers"
	install_matrix "$servers" "$PWD/$lock" "$PWD/$installed" ||
		die "cannot install the servers of the matrix, see above: try again with the npm registry in reach, or $instead"
}

# optional ends with an error in CI and goes on anywhere else: a check that
# silently did not happen is worse than none.
optional() {
	if [ "${CI:-}" = true ]; then
		die "$*"
	fi
	say "$*; going on without it"
}

command -v go >/dev/null || die "no Go: install Go 1.26 or newer from https://go.dev/dl"
for what; do
	case $what in
	postgres | compiler | pgbouncer | npm | matrix) "setup_$what" ;;
	*) die "cannot set up \"$what\": say postgres, compiler, pgbouncer, npm or matrix" ;;
	esac
done
