# Targets of the board's image; included by the Makefile.
GO    ?= go
BOARD ?= ast2600-evb

image: ## build kernel, device tree and root file system of BOARD into build/images/BOARD
	$(GO) run ./images/mkimage -board $(BOARD)

run-board: image ## boot BOARD under QEMU on this terminal (Ctrl-A X ends it); FLASH=1: from its flash
	$(GO) run ./images/runboard -board $(BOARD) $(if $(FLASH),-flash)

e2e: image ## boot the board, move, cut the power in the middle of 5 moves
	$(GO) test -tags e2e -count=1 -v -timeout 20m ./test/e2e/...

e2e-full: image ## as e2e, with 20 power cuts
	BATON_E2E_FULL=1 $(GO) test -tags e2e -count=1 -v -timeout 60m ./test/e2e/...

.PHONY: image run-board e2e e2e-full
