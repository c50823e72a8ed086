# Trapeze. `make help` lists what there is; `make check` passing is what "done" means.
#
# Everything needs Go alone, and PostgreSQL in one of three forms: DATABASE_URL (14 or newer; for tests a
# superuser), server programs on this machine, or a network to download them once. Only -race also needs a C compiler.

GO          ?= go
BUF         ?= github.com/bufbuild/buf/cmd/buf@v1.75.0
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    ?= ./...
TIMEOUT     ?= 15m
TAGS        := failpoints long
ALL_TAGS    := $(TAGS) ha

.DEFAULT_GOAL := help
.PHONY: help demo test race race-short fault ha fuzz planted example e2e docs check format vet lint security modules vuln fmt proto bench bench-peers torture clean

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PACKAGES=./runner/... narrows the tests, ARGS='--keep' goes to demo, bench, torture and e2e."
	@echo "  make torture SEED=7 MINUTES=5 ARGS='-only F2,F24'; ARGS=-help lists what it can do."
	@echo "  .ci/run is the fast leg of CI, .ci/long the others: .ci/long -list."

demo: ## run the example pipeline on real data, with progress and a killed process
	@echo "building ..." >&2
	@$(GO) run ./cmd/trapeze demo $(ARGS)

# All packages share one PostgreSQL, unless DATABASE_URL names a superuser of one. Tests wait more than they compute, so twelve run at the same time, on any
# machine: the server has 400 connections. The checks of go vet, which go test makes as well, are left to make vet.
# bin/with passes signals on, which go run does not. The name of make in a variable keeps make -n from running the line.
SUBMAKE := $(MAKE)
test: ## run all tests on a real PostgreSQL
	$(GO) build -o bin/with ./internal/testdb/with && exec bin/with $(SUBMAKE) --no-print-directory test-all

.PHONY: test-all
test-all:
	$(GO) test -vet=off -p 3 -parallel 4 -timeout $(TIMEOUT) $(PACKAGES)
	$(if $(filter ./...,$(PACKAGES)),cd examples/mounting && $(GO) test -vet=off -timeout $(TIMEOUT) ./...)
	$(if $(filter ./...,$(PACKAGES)),cd examples/river && $(GO) test -vet=off -timeout $(TIMEOUT) ./...)
	$(if $(filter ./...,$(PACKAGES)),cd examples/sql && $(GO) test -vet=off -short -timeout $(TIMEOUT) ./...)

race: ## run all tests with the race detector
	$(GO) test -race -timeout $(TIMEOUT) $(PACKAGES)

# The packages where goroutines meet. make race has the others too, with api, remote and cmd, which drive these from outside.
CONCURRENT = $(shell $(GO) list ./... | grep -E '/(runner|poller|scheduler|remote/[a-z]+|internal/(await|batch|bus|calendar|engine|feed|failpoint|journal|maintenance|memhttp|pod|pool|slots|telemetry|watchdog|work))$$')

# Tests that are long with the race detector and have shorter neighbours on the same code. make race has them all.
LONG_RACE := TestADatabaseThatIsGoneDoesNotKeepTheProcess TestTheMaintenanceOfTwoPodsAndOfOneThatIsCutOffLeavesTheSameRows \
	TestCancelsLeaveNoPipelineHalfDone \
	TestAnyPipelineEndsAsTheModelSays TestADelayedJobRunsAtItsMomentWhoeverPromotesIt TestAKeyInAnOpenTransactionHoldsUpNoOtherSchedule \
	TestAFullLaneStarvesNoOther TestProgressDuringATransactionHoldsUpNobody TestCommandsAreWrittenDownWithTheirOrigin \
	TestPodsOfTwoSchemasEachHaveALeader TestConnectionsThatBrokeWhileIdleCostNoSubmission \
	TestAScheduleInAZoneThatAPodDoesNotKnowIsLeftToOthers TestALimitOfALaneIsChangedLive TestFivePodsFireOnceWhateverBecomesOfThem \
	TestAfterAnOutageOfAllPodsTheLateOnesAreSparedForOneLease TestTheFailureOfACrashLimitIsFollowed \
	TestTheRightsOfTheGuideAreWhatSubmittingNeeds \
	TestOnlyLivingPodsAreListedWithTheirVersionAndWhatTheyRun
empty :=
space := $(empty) $(empty)

SHORT_RACE := -race -short -skip '^($(subst $(space),|,$(strip $(LONG_RACE))))$$' -timeout $(TIMEOUT)

race-short: ## the concurrent packages with the race detector, without the tests that are long with it (HALF=1 or 2 of runner's)
	$(GO) test $(SHORT_RACE) $(filter-out %/runner,$(CONCURRENT))
	$(GO) test $(SHORT_RACE) $(if $(filter 1,$(HALF)),-run '^TestA')$(if $(filter 2,$(HALF)),-run '^(Test[^A]|Example)') ./runner

fault: ## death at every failpoint, paused pods, a million rows
	$(GO) test -tags '$(TAGS)' -timeout 60m $(PACKAGES)

ha: ## failover under load: Patroni, HAProxy, pgbouncer, three pods (needs these programs)
	$(GO) test -count=1 -tags ha -timeout 60m -v $(if $(RUN),-run '$(RUN)') ./internal/ha

fuzz: ## fuzz each target for FUZZTIME (30s); what breaks one is kept in its testdata
	FUZZTIME=$(or $(FUZZTIME),30s) .ci/fuzz $(PACKAGES)

planted: ## plant seventy-one bugs, one at a time, and expect the tests to fail (hours; ARGS='-only store')
	$(GO) build -o bin/planted ./.ci/planted
	bin/planted $(ARGS) .ci/planted/bugs.txt internal/torture/mutants.txt

example: ## kill the example's pods at random moments, SEEDS times, and compare every digit
	EXAMPLE_SEEDS=$(or $(SEEDS),$(SEED),20) $(GO) test -count 1 -timeout $(TIMEOUT) -run 'TheExampleGivesTheSameTotalsWheneverIts$(if $(SEED),/seed_$(SEED)$$)' ./internal/faults

e2e: ## click through the dashboard in a headless Chromium (needs node and chromium; as root on Debian it installs them)
	@GO=$(GO) e2e/run $(ARGS)

docs: ## build the documentation site into docs/.vitepress/dist; fails on a dead link (needs node and npm)
	cd docs && { test node_modules/.package-lock.json -nt package-lock.json || npm ci --ignore-scripts --no-audit --no-fund; } && npm run --silent build

check: format vet lint modules vuln race ## format, vet, lint, modules, vulnerabilities, tests with -race

format: ## fail when a file is not formatted
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; }

vet: ## go vet, with and without the build tags of the long legs
	$(GO) vet ./...
	$(GO) vet -tags '$(ALL_TAGS)' ./...
	cd bench && $(GO) vet ./trapeze ./common ./driver ./lean/...
	cd examples/mounting && $(GO) vet ./...
	cd examples/river && $(GO) vet ./...
	cd examples/sql && $(GO) vet ./...

lint: security ## staticcheck and gosec, pinned
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(STATICCHECK) -tags '$(ALL_TAGS)' ./...

# gosec looks at what meets strangers, and at what that links: not at tests, nor at the programs that measure and break us on a
# developer's machine. One place that it is wrong about is marked there (#nosec, with the reason); of no use to us as a whole are
#   G204 a program is started whose name is in a variable: PostgreSQL's and our own, found by us, never named by a request, and no shell
#   G304 a file is opened whose name is in a variable: one that the operator names, by a flag, a variable or a job of the demo's
OURS = $(shell $(GO) list ./... | grep -vE '/(cmd/(bench|torture)|internal/(torture.*|demokinds|faultnet|faults|pgtest|podtest|testdb.*))$$')

security: ## gosec, pinned in .ci/gosec
	$(GO) build -C .ci/gosec -o $(CURDIR)/bin/gosec .
	bin/gosec -test=false -exclude=G204,G304 $(OURS)

modules: ## the dependencies are the ones of go.sum, and go.mod needs no tidying
	$(GO) mod verify
	$(GO) mod tidy -diff

vuln: ## govulncheck, pinned: known vulnerabilities in what we call (needs vuln.go.dev, or GOVULNDB)
	@.ci/vuln || [ $$? -eq 69 ] # its database is not reachable

fmt: ## format all files
	gofmt -w .

proto: ## lint the protocol of remote workers and generate its code (remote/remotepb)
	cd remote && $(GO) run $(BUF) lint && $(GO) run $(BUF) generate && $(GO) test ./remotepb -update

bench: ## measure takeover, hand-off gap, throughput and chains
	@echo "building ..." >&2
	@$(GO) run ./cmd/bench $(ARGS)

bench-peers: ## beside River, graphile-worker, pg-boss, gue, DBOS and Hatchet (needs npm; an hour and a half, ARGS narrows it)
	@bench/run.sh $(ARGS)

torture: ## break a fleet as a seed says (SEED, MINUTES), and check what must hold
	@$(GO) run ./cmd/torture $(if $(SEED),-seed $(SEED)) -minutes $(or $(MINUTES),1) $(ARGS)

clean: ## remove what was built
	rm -rf bin dist trapeze bench/bin e2e/node_modules docs/node_modules docs/.vitepress/cache docs/.vitepress/dist coverage.*
