# Baton. 'make help' lists the targets.

GO        ?= go
BUILD     := build
LDFLAGS   := -s -w
GOFLAGS_R := -trimpath -buildvcs=false -ldflags='$(LDFLAGS)'
# Everything is static; only the race detector's tests need cgo and a C compiler.
export CGO_ENABLED := 0

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

build: ## batond, baton and batonsim for this machine, into build/bin
	$(GO) build $(GOFLAGS_R) -o $(BUILD)/bin/ ./cmd/...

build-arm: ## batond and baton for the board (armv7), into build/arm
	GOOS=linux GOARCH=arm GOARM=7 $(GO) build $(GOFLAGS_R) -o $(BUILD)/arm/ ./cmd/batond
	GOOS=linux GOARCH=arm GOARM=7 $(GO) build $(GOFLAGS_R) -tags board -o $(BUILD)/arm/ ./cmd/baton

build-all: ## batond and baton for linux arm, arm64 and amd64, to see that they build
	for a in arm arm64 amd64; do GOOS=linux GOARCH=$$a GOARM=7 $(GO) build -o $(BUILD)/all/$$a/ ./cmd/batond ./cmd/baton || exit 1; done

demo: build ## the main job on the simulator: no root, no hardware, under a minute
	$(GO) run ./test/demo -bin $(BUILD)/bin

test: gcc ## vet and all tests with the race detector
	$(GO) vet ./...
	CGO_ENABLED=1 $(GO) test -race -timeout 10m ./...

figures: ## what is promised in numbers: 'name value unit' a line
	@BATON_FIGURES=$(CURDIR)/$(BUILD)/figures.txt $(GO) test -tags figures -count=1 ./test/figures > $(BUILD)/figures.log || { cat $(BUILD)/figures.log; exit 1; }
	@cat $(BUILD)/figures.txt

mutants: ## put one bug against each invariant into the agent: its test alone must fail
	$(GO) run ./test/mutants

# What counts cases by the thousand shows nothing more on another word size.
CAMPAIGNS := ^(TestPowerCut|TestPowerCutBadPages|TestEveryReading|TestBitFlip|TestMountMangled|TestFormatCut|TestFirstStart|TestFormatAgain|TestMendMangled)$$

test-arm: ## the core's tests as 32-bit ARM code, under qemu-user (which knows no GPIO ioctls, so not ee/gpio)
	@command -v qemu-arm-static >/dev/null || { echo "qemu-arm-static is missing: apt-get install --no-install-recommends qemu-user-static" >&2; exit 1; }
	GOARCH=arm GOARM=7 $(GO) test -exec qemu-arm-static -timeout 10m -skip '$(CAMPAIGNS)' ./nvm/... ./ee ./ee/bus ./pcie/... ./enclosure/plan

FUZZTIME ?= 20s
fuzz: ## fuzz each decoder for FUZZTIME
	$(GO) run ./test/fuzzall -time $(FUZZTIME)

LIVES ?= 5000
lives: ## hunt: LIVES random lives of an enclosure, others at each run
	$(GO) test ./enclosure -count=1 -run TestLives -timeout 60m -rapid.checks=$(LIVES) -rapid.shrinktime=60s

faults: ## every fault of a bus or part, by target and operation; every byte refused, every bit inverted
	$(GO) test ./test/busfaults -count=1 -timeout 20m -full

KILLS ?= 1000
kill: ## SIGKILL the agent KILLS times at random instants of what it does; seeds: docs/kill.md
	$(GO) run ./test/kill -runs $(KILLS)

WEAR ?= 1000000
wear: ## WEAR moves by the whole agent on the simulator: how evenly the store's pages wear
	@mkdir -p $(BUILD)
	@BATON_WEAR=$(WEAR) BATON_WEAR_OUT=$(CURDIR)/$(BUILD)/wear.txt $(GO) test -count=1 -timeout 60m -run '^TestWear$$' ./test/wear > $(BUILD)/wear.log || { cat $(BUILD)/wear.log; exit 1; }
	@cat $(BUILD)/wear.txt

LINEAR_OPS ?= 10000
linearizable: build ## 16 clients at batond's socket, with bus faults and kills: was each answer that of one thing after the other?
	$(GO) run ./test/linear -bin $(BUILD)/bin -ops $(LINEAR_OPS)
	$(GO) test -tags linear -count=1 ./test/linear

model: ## search the protocol's model in full, its mutants and traces: 'model: states=N errors=0 mutants=N missed=0'
	@$(GO) run ./test/model -build $(BUILD)

POWERCUT ?= 10m
powercut: ## cut the power for POWERCUT, at least a million different times in 10 minutes, in everything the agent does
	mkdir -p $(BUILD) && $(GO) test -c -o $(BUILD)/powercut.test ./test/powercut
	cd test/powercut && $(CURDIR)/$(BUILD)/powercut.test -test.run '^TestCampaign$$' -test.timeout 2h -powercut.for $(POWERCUT) -powercut.min $(if $(filter 10m,$(POWERCUT)),1000000,1)

lint: ## gofmt, vet, staticcheck, revive, errcheck, ineffassign, errorlint, misspell, modernize; generated files and go.mod are fresh
	@sh .ci/lint

size: build-arm ## bytes of the board's binaries, and what is in them
	@ls -l $(BUILD)/arm | awk 'NR>1 {print $$9, $$5, "bytes"}'
	@$(GO) run ./test/sizes $(BUILD)/arm/batond $(BUILD)/arm/baton

generate: ## pages that are made from the code
	$(GO) generate ./...

clean: ## remove what was built; downloaded kernels stay
	rm -rf $(BUILD)/bin $(BUILD)/arm $(BUILD)/all $(BUILD)/images $(BUILD)/run

gcc:
	@command -v gcc >/dev/null || { echo "the race detector needs a C compiler: apt-get install --no-install-recommends gcc libc6-dev" >&2; exit 1; }

include images/image.mk

.PHONY: help build build-arm build-all demo test figures mutants test-arm fuzz lives faults kill wear linearizable model powercut lint size generate clean gcc
