# Targets with a comment are listed by "make help".
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-matrix faults race check fmt bench clean

# The race detector needs a C compiler; scripts/setup.sh says so if there is none.
RACE = $(if $(shell command -v $(firstword $(shell go env CC))),-race)
BENCH ?= latency
PG_VERSIONS ?= 14 15 16 17 18

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

setup: ## find or install what the tests and the demo need
	@scripts/setup.sh postgres compiler pgbouncer

# Without cgo the program is one static file that runs on any Linux.
build: ## build bin/dispatcher
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/dispatcher

demo: build ## run everything on this machine until Ctrl-C (DEMO_RATE=20 per second, DEMO_COUNT=0)
	@scripts/setup.sh postgres
	@go build -o bin/ ./cmd/outbox-demo && exec bin/outbox-demo --dispatcher bin/dispatcher

# -count=1: some tests build and run the programs, which the test cache does not see.
test: setup ## run all tests
	go test $(RACE) -count=1 -timeout 20m ./...
	go -C bench/peers test $(RACE) -count=1 -timeout 10m ./...
	go -C bench/plot test $(RACE) -count=1 -timeout 10m ./...

# All tests take minutes on each version. Continuous integration has them on one
# version, by "make test", and here on the oldest and the newest only PKG, the
# packages that depend on the version: those with SQL, and the program. See .ci/run.
test-matrix: setup ## run the tests of PKG on PG_VERSIONS (PKG=./... PG_VERSIONS="14 15 16 17 18")
	@scripts/setup.sh matrix
	@scripts/matrix.sh "$(PG_VERSIONS)" $(RACE) -count=1 -timeout 20m $(or $(PKG),./...)

# FAULTS may add what "go test ./faults -args -help" lists, such as -trace.
DURATION ?= 10m
SEED ?= $(shell date +%s)
faults: setup ## random faults for DURATION, from SEED (DURATION=10m SEED=the time)
	go test -count=1 -timeout 0 -v -run 'TestSoak$$' ./faults -args -duration=$(DURATION) -seed=$(SEED) $(FAULTS)

race: setup ## run the tests of PKG ten times, in random order (PKG=./...)
	go test -race -count 10 -shuffle on -timeout 60m $(or $(PKG),./...)

check: ## run the linters and other checks that need no database
	@scripts/check.sh

fmt: ## format the Go files
	@go -C tools build -o ../bin/tools/ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@bin/tools/golangci-lint fmt

bench: setup ## run a scenario of the benchmark (BENCH=latency)
	go run ./bench $(BENCH)

clean: ## remove what was built
	rm -rf bin tools/node_modules tools/postgres/node_modules
