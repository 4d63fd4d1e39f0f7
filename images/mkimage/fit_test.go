package main

import (
	"strings"
	"testing"

	"baton/images/boards"
)

func TestCheckBank(t *testing.T) {
	small, err := boards.Load("ast2600-evb")
	if err != nil {
		t.Fatal(err)
	}
	bank := small.BankSize()
	if bank < 8<<20 || bank > 16<<20 {
		t.Errorf("a bank of the ast2600-evb has %d bytes; two must fit into 32 MiB, and an image into each", bank)
	}
	if err := checkBank(small, bank); err != nil {
		t.Errorf("an image of just the size of a bank: %v", err)
	}
	err = checkBank(small, bank+1)
	if err == nil || !strings.Contains(err.Error(), "15925249 bytes") || !strings.Contains(err.Error(), "bank-a of the flash of ast2600-evb has 15925248: 1 too many") {
		t.Errorf("an image that is a byte too large: %v; want both sizes", err)
	}
	none, err := boards.Load("arm64-virt")
	if err != nil {
		t.Fatal(err)
	}
	if err := checkBank(none, 1<<40); err != nil {
		t.Errorf("a board without flash: %v", err)
	}
}
