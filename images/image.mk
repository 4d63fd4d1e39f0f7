# Targets of the board's image; included by the Makefile.
GO    ?= go
BOARD ?= ast2600-evb

image: ## build kernel, device tree and root file system of BOARD into build/images/BOARD
	$(GO) run ./images/mkimage -board $(BOARD)

run-board: image ## boot BOARD under QEMU on this terminal (Ctrl-A X ends it)
	$(GO) run ./images/runboard -board $(BOARD)

# The boards that the tests boot.
E2E_BOARDS := ast2600-evb amd64-q35 arm64-virt sabrelite

images: ## the images of all boards that the tests boot
	for b in $(E2E_BOARDS); do $(GO) run ./images/mkimage -board $$b || exit 1; done

e2e: images ## boot the boards; move, cut the power in the middle of 5 moves
	$(GO) test -tags e2e -count=1 -v -timeout 40m ./test/e2e/...

e2e-full: images ## as e2e, with 20 power cuts
	BATON_E2E_FULL=1 $(GO) test -tags e2e -count=1 -v -timeout 90m ./test/e2e/...

bench-board: ## what is promised of the board in numbers: 'name value unit' a line
	@for b in ast2600-evb amd64-q35; do $(GO) run ./images/mkimage -board $$b > $(BUILD)/bench-board.log || { cat $(BUILD)/bench-board.log; exit 1; }; done
	@rm -f $(BUILD)/bench-board.txt
	@BATON_FIGURES=$(CURDIR)/$(BUILD)/bench-board.txt $(GO) test -tags bench -count=1 -timeout 30m ./test/e2e > $(BUILD)/bench-board.log; \
	 status=$$?; cat $(BUILD)/bench-board.txt; [ $$status = 0 ] || { cat $(BUILD)/bench-board.log; exit 1; }

.PHONY: image images run-board e2e e2e-full bench-board
