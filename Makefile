# Trapeze. `make help` lists the most important targets, and `make help-all` lists all. A change is done when `make check` passes.
#
# Most targets need only Go and PostgreSQL. PostgreSQL can be a server named by DATABASE_URL (14 or newer; tests need a superuser),
# installed server programs, or a network to download these once. Only -race also needs a C compiler.

GO          ?= go
BUF         ?= github.com/bufbuild/buf/cmd/buf@v1.75.0
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    ?= ./...
TIMEOUT     ?= 15m
TAGS        := failpoints long

.DEFAULT_GOAL := help
.PHONY: help help-all demo test race race-short attack fault ha environments fuzz planted example e2e docs image test-deploy check format vet lint security modules vuln tools fmt proto bench bench-peers torture clean

LIST := awk -F ':.*\#\# ' '/^[a-z0-9-]+:.*\#\# / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

help: ## list the targets that most changes need
	@$(LIST) | grep -E '^  make (demo|test|check|race|docs|help-all) '

help-all: ## list all targets
	@$(LIST)
	@echo
	@echo "  PACKAGES=./runner/... narrows the tests, ARGS='--keep' goes to demo, bench, torture and e2e."
	@echo "  make torture SEED=7 MINUTES=5 ARGS='-only F2,F24'; ARGS=-help lists what it can do."
	@echo "  .ci/run is the fast leg of CI, .ci/long the others: .ci/long -list."

demo: ## run the example pipeline on real data, show its progress and kill a process
	@echo "building ..." >&2
	@$(GO) run ./cmd/trapeze demo $(ARGS)

# Debuggers need debug information for our packages, and benchmarks need inlining. Tests need neither, and compiling them without both takes a
# third less time. vet and lint use the same flags, so that the packages that they compile need not be compiled again.
demo test vet lint tools race race-short attack fault: export GOFLAGS += '-gcflags=github.com/trapeze-run/trapeze/...=-dwarf=false -l'

# Linking without cgo is faster. Compilers and linkers collect garbage less often; programs under test must not, since tests limit their memory.
demo test vet lint tools: export CGO_ENABLED = 0
test: export GOFLAGS += '-toolexec=env GOGC=1000 GOMEMLIMIT=1GiB'

# All packages share one PostgreSQL server, unless DATABASE_URL names a superuser of another. Tests wait more than they compute, so twelve run
# concurrently on any machine; the server allows 400 connections. go test does not run go vet here, because make vet does.
# Unlike go run, bin/with forwards signals. SUBMAKE hides $(MAKE) from make, so that make -n does not execute the line.
SUBMAKE := $(MAKE)
test: ## run all tests on a real PostgreSQL
	$(GO) build -o bin/with ./internal/pgtest/with && exec bin/with $(SUBMAKE) --no-print-directory test-all

# The packages whose tests take longest start first, so that none of them runs alone at the end.
LONGEST = $(if $(filter ./...,$(PACKAGES)),./runner ./e2e ./internal/store ./remote/internal/host ./runner/runnertest ./remote)

.PHONY: test-all
test-all:
	$(GO) test -vet=off -p 3 -parallel 4 -timeout $(TIMEOUT) $(LONGEST) $(PACKAGES)

race: ## run all tests with the race detector
	$(GO) test -race -timeout $(TIMEOUT) $(PACKAGES)
	$(call IN_TOOLS,$(GO) test -race -timeout $(TIMEOUT))

# The module in tools imports this one, so it is tested after it. PACKAGES selects packages of this module only.
IN_TOOLS = $(if $(filter ./...,$(PACKAGES)),cd tools && $(1) ./...)

# The packages whose goroutines share data. make race also tests the others, including api, remote and cmd, which use these packages.
CONCURRENT = $(shell $(GO) list ./... | grep -E '/(runner|poller|scheduler|remote/[a-z]+|internal/(engine|feed|fleet|failpoint|identity|journal|maintenance|pod|routine|slots|telemetry|work))$$')

# Tests that take long with the race detector and whose code shorter tests also cover. make race runs them all.
LONG_RACE := TestRandomPipelines TestFivePodsShareSchedules \
	TestLivePodList
empty :=
space := $(empty) $(empty)

SHORT_RACE := -race -short -skip '^($(subst $(space),|,$(strip $(LONG_RACE))))$$' -timeout $(TIMEOUT)

race-short: ## the concurrent packages with the race detector, without the tests that are long with it (HALF=1 or 2 of runner's)
	$(GO) test $(SHORT_RACE) $(filter-out %/runner,$(CONCURRENT))
	$(GO) test $(SHORT_RACE) $(if $(filter 1,$(HALF)),-run '^Test[A-L]')$(if $(filter 2,$(HALF)),-run '^(Test[^A-L]|Example)') ./runner

# Tests that attack a real process; docs/testing.md lists them by attack. make test runs them too.
ATTACKS := TestAttackForgedJWTs TestAttackGuessedTokens TestAttackCrossOriginRequests TestAttackStoredAndReflectedScripts \
	TestAttackSQLInParameters TestAttackJobsOfAnotherSubmitter TestAttackRoutesOfOtherRoles TestAttackBombs TestAttackHeadersAndPaths \
	TestServeStreamsPerPrincipal TestSlowRequestHeaders \
	TestLoopbackHeaderAuthenticationHostNames TestRemoteWorkerCertificate \
	TestForbiddenRemoteWorkerReports TestExcessiveRemoteWorkerMessages TestWrongTokensAtWorkerRoutes

attack: ## attack a real serve over HTTP: forged tokens, other origins, scripts, SQL, others' jobs, bombs, slow clients
	$(GO) test -count=1 -vet=off -timeout $(TIMEOUT) $(ARGS) -run '^($(subst $(space),|,$(strip $(ATTACKS))))$$' ./e2e

fault: ## crashes at every failpoint, paused pods, a million rows
	$(GO) test -tags '$(TAGS)' -timeout 60m $(PACKAGES)
	$(call IN_TOOLS,$(GO) test -tags '$(TAGS)' -timeout 60m)

ha: ## failover under load: Patroni, HAProxy, pgbouncer, three pods (needs these programs)
	cd tools && $(GO) test -count=1 -tags ha -timeout 60m -v $(if $(RUN),-run '$(RUN)') ./ha

environments: ## one workload under some seventy settings, roles, poolers and encodings (needs pgbouncer; RUN='/LATIN1' narrows it)
	cd tools && $(GO) test -count=1 -tags environments -timeout 30m -parallel 3 $(if $(RUN),-run 'TestEnvironments$(RUN)') ./environments

fuzz: ## fuzz each target for FUZZTIME (30s); inputs that break one are kept in its testdata
	FUZZTIME=$(or $(FUZZTIME),30s) .ci/fuzz $(PACKAGES)

planted: ## plant bugs, one at a time, and expect a test to fail (hours; ARGS='-only store')
	$(GO) build -C tools -o ../bin/planted ./planted
	bin/planted $(ARGS) tools/planted/bugs.txt tools/torture/mutants.txt

example: ## kill the example's pods at random times, SEEDS times, and compare every digit
	cd tools && EXAMPLE_SEEDS=$(or $(SEEDS),$(SEED),20) $(GO) test -count 1 -tags long -timeout $(TIMEOUT) -run 'TestExampleWithRandomPodKills$(if $(SEED),/seed_$(SEED)$$)' ./faults

e2e: ## click through the dashboard in a headless Chromium (needs node and chromium; as root on Debian it installs them)
	@GO=$(GO) e2e/run $(ARGS)

docs: ## build the documentation site into docs/.vitepress/dist; fails on a dead link (needs node and npm)
	cd docs && { test node_modules/.package-lock.json -nt package-lock.json || npm ci --ignore-scripts --no-audit --no-fund; } && npm run --silent build

image: ## write a container image to dist/trapeze-image.tar, without a container daemon (ARGS='-arch arm64 -program ./cmd/mine')
	cd deploy && $(GO) run ./image -C .. -release $(or $(RELEASE),$(shell git describe --tags --always --dirty)) -o ../dist/trapeze-image.tar $(ARGS)

test-deploy: ## test the image, the Helm chart, the compose file and the systemd unit
	cd deploy && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) test -timeout $(TIMEOUT) ./...

check: format vet lint modules vuln tools race ## format, vet, lint, modules, vulnerabilities, tools, tests with -race

format: ## fail if a file is not formatted
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; }

vet: ## go vet, with and without the build tags of the long legs
	$(GO) vet ./...
	$(GO) vet -tags '$(TAGS)' ./...
	cd examples/mounting && $(GO) vet ./...
	cd examples/river && $(GO) vet ./...
	cd examples/sql && $(GO) vet ./...

lint: security ## staticcheck and gosec, pinned
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(STATICCHECK) -tags '$(TAGS)' ./...

# gosec checks the programs that are exposed to users and the packages that they link. It skips tests and the
# packages that only tests use. Single false positives are marked in the code (#nosec, with the reason). These rules are excluded:
#   G204 starting a program named by a variable: only PostgreSQL's programs and this one are started, never by request and without a shell
#   G304 opening a file named by a variable: the operator names it with a flag, an environment variable or a demo job
OURS = $(shell $(GO) list ./... | grep -vE '/internal/(faultnet|pgtest.*|podtest)$$')

security: ## gosec, pinned in .ci/gosec
	$(GO) build -C .ci/gosec -o $(CURDIR)/bin/gosec .
	bin/gosec -test=false -exclude=G204,G304 $(OURS)

modules: ## check that the dependencies match go.sum and that go.mod is tidy
	$(GO) mod verify
	$(GO) mod tidy -diff

# The benchmarks, the fault tests, the torture test and the planted bugs. make race and make fault test them too.
tools: ## vet, lint, tidy and test the modules of tools and of the examples
	cd tools && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) vet -tags '$(TAGS) ha environments' ./...
	cd tools/peers && $(GO) vet ./trapeze ./common ./driver ./lean/...
	cd tools && $(GO) run $(STATICCHECK) ./... && $(GO) run $(STATICCHECK) -tags '$(TAGS) ha environments' ./...
	$(GO) build -o bin/with ./internal/pgtest/with && cd tools && exec ../bin/with $(GO) test -vet=off -p 3 -parallel 4 -timeout $(TIMEOUT) ./...
	cd examples/mounting && exec ../../bin/with $(GO) test -vet=off -timeout $(TIMEOUT) ./...
	cd examples/river && exec ../../bin/with $(GO) test -vet=off -timeout $(TIMEOUT) ./...
	cd examples/sql && exec ../../bin/with $(GO) test -vet=off -short -timeout $(TIMEOUT) ./...

vuln: ## govulncheck, pinned: known vulnerabilities in the code that is called (needs vuln.go.dev or GOVULNDB)
	@.ci/vuln || [ $$? -eq 69 ] # the vulnerability database is not reachable

fmt: ## format all files
	gofmt -w .

proto: ## lint the protocol of remote workers and generate its code (remote/remotepb)
	cd remote && $(GO) run $(BUF) lint && $(GO) run $(BUF) generate && $(GO) test ./remotepb -update

bench: ## measure takeover, hand-off gap, throughput and chains
	@echo "building ..." >&2
	@$(GO) build -C tools -o ../bin/bench ./bench && exec bin/bench $(ARGS)

bench-peers: ## compare with River, graphile-worker, pg-boss, gue, DBOS and Hatchet (needs npm; takes an hour and a half, ARGS narrows it)
	@tools/peers/run.sh $(ARGS)

torture: ## harm a fleet with the faults of a seed (SEED, MINUTES) and check the invariants
	@$(GO) build -C tools -o ../bin/torture ./torture/command && exec bin/torture $(if $(SEED),-seed $(SEED)) $(if $(MINUTES),-minutes $(MINUTES)) $(ARGS)

clean: ## remove build output
	rm -rf bin dist trapeze tools/peers/bin e2e/node_modules docs/node_modules docs/.vitepress/cache docs/.vitepress/dist coverage.*
