# Targets of the board's image; included by the Makefile.
GO    ?= go
BOARD ?= ast2600-evb

image: ## build kernel, device tree, root file system and FIT image of BOARD into build/images/BOARD; BATON_SIGN_KEY=KEY.pem signs
	$(GO) run ./images/mkimage -board $(BOARD)

images: ## build the images of all boards
	for b in $(notdir $(patsubst %/,%,$(dir $(wildcard images/boards/*/board.json)))); do $(GO) run ./images/mkimage -board $$b || exit 1; done

run-board: image ## boot BOARD under QEMU on this terminal (Ctrl-A X ends it)
	$(GO) run ./images/runboard -board $(BOARD)

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
