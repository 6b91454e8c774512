# What CI runs (.ci/run), in parts.

TOOL = go tool -modfile=tools/go.mod
ORDERS ?= 500
FAULTS ?= some

.DEFAULT_GOAL := help

.PHONY: help
help: ## what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

.PHONY: check
check: lint race ## what a change has to pass: format, lint, tidy, tests with the race detector
	go mod tidy -diff
	go -C tools mod tidy -diff
	go -C bench mod tidy -diff
	go -C bench vet ./...
	go -C bench test ./...

.PHONY: test
test: ## the tests as they come
	go test ./...

.PHONY: race
race: ## the tests with the race detector, in random order
	go test -race -gcflags=modernc.org/sqlite/lib=-race=false -shuffle=on ./...

.PHONY: images
images: ## the base images that containers need, as far as they are missing (minutes the first time)
	e2e/images.sh

.PHONY: e2e
e2e: images ## black-box tests, those that need Docker and Postgres included
	FARANDOLE_REQUIRE=docker,postgres go test -count=1 -timeout=45m ./e2e

.PHONY: chaos
chaos: ## hundreds of kills and storms of twenty seeds, on both databases (half an hour; FARANDOLE_SEED draws others); the last lines say how many
	FARANDOLE_REQUIRE=postgres FARANDOLE_LONG=1 go test -count=1 -parallel=2 -timeout=90m -v -run 'Kill|Storm|Outage|freezes|ServicesStart|Breaker' ./e2e
	FARANDOLE_LONG=1 go test -count=1 -timeout=30m -v -run 'Partitions_storm' ./consumer

.PHONY: bench
bench: ## Farandole beside its peers, and whether the targets are met (BENCH="-quick", "-help")
	cd bench && go run . $(BENCH)

.PHONY: demo
demo: ## a whole system with injected trouble, audited (ORDERS, FAULTS)
	go run ./cmd/farandole demo --orders $(ORDERS) --faults $(FAULTS)

.PHONY: lint
lint: ## format check and linters (the first run compiles them: minutes)
	$(TOOL) golangci-lint fmt --diff
	$(TOOL) golangci-lint run

.PHONY: fmt
fmt: ## format the code (gofumpt, gci)
	$(TOOL) golangci-lint fmt

.PHONY: ci
ci: ## all that CI does; installs packages, so as root on a machine for it
	.ci/run
