# shellcheck shell=bash
# Functions shared by .ci/run and .ci/long: scratch folders, cleanup, installing programs, steps. Both scripts source it in the project's root.

# A separate folder, so that leftovers of this run can be told apart from other programs' files. Its permissions are those of /tmp,
# because PostgreSQL and some tests run as an unprivileged user if the script runs as root.
scratch=$(mktemp -d "${TMPDIR:-/tmp}/trapeze-ci-XXXXXX")
chmod 1777 "$scratch"
export TMPDIR=$scratch

# Another folder in memory, for test databases; see internal/pgtest.
memory=$(mktemp -d /dev/shm/trapeze-ci-XXXXXX 2>/dev/null || echo "$scratch")
chmod 1777 "$memory"
export PGTEST_MEMORY=$memory

# servers prints the PIDs of the PostgreSQL servers whose data directory is in one of these folders.
servers() {
	local file pid
	for file in $(grep -lz -e "^$scratch/" -e "^$memory/" /proc/[0-9]*/cmdline 2>/dev/null); do
		pid=${file//[^0-9]/}
		[[ $(cat "/proc/$pid/comm" 2>/dev/null) != postgres ]] || echo "$pid"
	done
}

step=
cleanup() {
	local code=$?
	trap - EXIT INT TERM
	[[ -z $step ]] || kill -TERM -- "-$step" 2>/dev/null || true
	for _ in {1..50}; do
		[[ -n $(servers) ]] || break
		sleep 0.2 # servers exit shortly after their owner
	done
	local left
	left=$(servers)
	if [[ -n $left ]]; then
		echo "left behind and stopped: postgres $left" >&2
		# shellcheck disable=SC2086 # one PID per word
		kill -QUIT $left || true
		sleep 1
		[[ $code -ne 0 ]] || code=1
	fi
	chmod -R u+w "$scratch" "$memory"
	rm -rf "$scratch" "$memory"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# run runs a step in its own process group, so that cleanup can terminate the whole group.
run() {
	echo "── $*"
	local begin=$SECONDS code=0
	set -m
	"$@" &
	step=$!
	set +m
	wait "$step" || code=$?
	kill -TERM -- "-$step" 2>/dev/null || true # processes that outlived the step
	step=
	echo "── $((SECONDS - begin)) s"
	return "$code"
}

# summary_add adds a row for summary_print: name, result, seconds.
summary=()
summary_add() { summary+=("$(printf '%-16s %-8s %6s s' "$1" "$2" "$3")"); }
summary_print() {
	echo
	printf '%-16s %-8s %8s\n' what result time
	((${#summary[@]} == 0)) || printf '%s\n' "${summary[@]}"
}

installable() { [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; }

updated=
install_packages() {
	# Only the programs are needed, not the server that Debian would set up and start.
	if [[ ! -e /etc/postgresql-common/createcluster.conf ]]; then
		mkdir -p /etc/postgresql-common
		echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
	fi
	[[ -n $updated ]] || run apt-get update -qq || return
	updated=yes
	# In run level 1, Debian starts no services.
	run env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

have_postgres() {
	[[ -n ${DATABASE_URL:-} || -n ${PGBIN:-} ]] && return
	command -v initdb >/dev/null && return
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && return
	compgen -G '/usr/pgsql-*/bin/initdb' >/dev/null && return
	command -v pg_config >/dev/null && [[ -x $(pg_config --bindir)/initdb ]]
}

# have reports whether a program is installed. It also searches the system directories that only root has in its PATH.
have() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 || -x /sbin/$1 ]]; }

# install_basics installs the programs that the tests need or can use. If it cannot, the tests report what is missing.
install_basics() {
	local missing=()
	have_postgres || missing+=(postgresql)
	command -v "${CC:-gcc}" >/dev/null || missing+=(gcc libc6-dev) # for the race detector
	command -v make >/dev/null || missing+=(make)
	if ((${#missing[@]})); then
		if installable; then install_packages "${missing[@]}"; else echo "missing here: ${missing[*]}" >&2; fi
	fi

	# A transaction pooler. Without it, the tests that use one are skipped and report that.
	if ! have pgbouncer && installable; then
		install_packages pgbouncer || echo "no pgbouncer here: its tests are skipped" >&2
	fi

	# Python's gRPC client, for the example worker in another language. Without it, the test of that worker is skipped and reports that.
	if ! command -v grpc_python_plugin >/dev/null && installable; then
		install_packages python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc libprotobuf-dev ||
			echo "no gRPC client of Python here: the test of its example is skipped" >&2
	fi
}
