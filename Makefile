# Trapeze. `make help` lists what there is; `make check` passing is what "done" means.
#
# Everything needs Go alone, and PostgreSQL in one of three forms: DATABASE_URL (14 or newer; for tests a user that may
# create databases), server programs on this machine, or a network to download them once. Only -race also needs a C
# compiler.

GO          ?= go
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
PACKAGES    ?= ./...
TIMEOUT     ?= 15m
TAGS        := failpoints long mutants

.DEFAULT_GOAL := help
.PHONY: help demo test race fault example e2e check format vet lint fmt bench bench-peers torture clean

help: ## list all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PACKAGES=./runner/... narrows the tests, ARGS='--keep' goes to demo, bench, torture and e2e."
	@echo "  make torture SEED=7 MINUTES=5 ARGS='-only F2,F24'; ARGS=-help lists what it can do."

demo: ## run the example pipeline on real data, with progress and a killed process
	@echo "building ..." >&2
	@$(GO) run ./cmd/trapeze demo $(ARGS)

test: ## run all tests on a real PostgreSQL
	$(GO) test -timeout $(TIMEOUT) $(PACKAGES)

race: ## run all tests with the race detector
	$(GO) test -race -timeout $(TIMEOUT) $(PACKAGES)

fault: ## run the long leg: death at every failpoint, paused pods, a million rows
	$(GO) test -tags '$(TAGS)' -timeout 60m $(PACKAGES)

example: ## kill the example's pods at random moments, SEEDS times, and compare every digit
	EXAMPLE_SEEDS=$(or $(SEEDS),$(SEED),20) $(GO) test -count 1 -timeout $(TIMEOUT) -run 'TheExampleGivesTheSameTotalsWheneverIts$(if $(SEED),/seed_$(SEED)$$)' ./internal/faults

e2e: ## click through the dashboard in a headless Chromium (needs node and chromium; as root on Debian it installs them)
	@GO=$(GO) e2e/run $(ARGS)

check: format vet lint race ## format, vet, lint, tests with -race

format: ## fail when a file is not formatted
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted, run make fmt:"; echo "$$unformatted"; exit 1; }

vet: ## go vet, with and without the build tags of the long leg
	$(GO) vet ./...
	$(GO) vet -tags '$(TAGS)' ./...
	cd bench && $(GO) vet ./trapeze ./common ./driver

lint: ## staticcheck, pinned
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(STATICCHECK) -tags '$(TAGS)' ./...

fmt: ## format all files
	gofmt -w .

bench: ## measure takeover, hand-off gap, throughput and chains
	@echo "building ..." >&2
	@$(GO) run ./cmd/bench $(ARGS)

bench-peers: ## beside River, graphile-worker, pg-boss, gue and DBOS (needs npm; an hour, ARGS narrows it)
	@bench/run.sh $(ARGS)

torture: ## break a fleet as a seed says (SEED, MINUTES), and check what must hold
	@$(GO) run ./cmd/torture $(if $(SEED),-seed $(SEED)) -minutes $(or $(MINUTES),1) $(ARGS)

clean: ## remove what was built
	rm -rf bin dist trapeze bench/bin e2e/node_modules coverage.*
