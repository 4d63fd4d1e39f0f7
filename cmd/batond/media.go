package main

import (
	"fmt"
	"strings"

	"periph.io/x/conn/v3/physic"

	"baton/mgmt/config"
	"baton/nvm"
	"baton/nvm/spidev"
)

// eeprom opens the chip that a slot's engine loads from, and names it.
func (h *hardware) eeprom(s config.Slot) (m nvm.Medium, at string) {
	e := s.EEPROM
	if e.SPI != "" {
		return h.spi(e.SPI, e.Part, e.Speed), e.SPI
	}
	return nvm.NewEEPROM(h.buses[s.Bus], uint16(e.Address), nvm.Parts[e.Part]), fmt.Sprintf("%s/%s", s.Bus, e.Address)
}

// spi is the chip behind a chip select. Who uses a part of it shares it: two
// drivers would come between each other's latch and write.
func (h *hardware) spi(path, part string, speed config.Frequency) *nvm.SPI25 {
	if chip := h.chips[path]; chip != nil {
		return chip
	}
	p := nvm.Parts25[part]
	clock := p.SpeedMax
	if speed != 0 {
		clock = physic.Frequency(speed) * physic.Hertz
	}
	port := spidev.New(path, clock)
	chip := nvm.NewSPI25(port, p)
	h.chips[path] = chip
	h.open = append(h.open, port, chip) // closed the other way round
	return chip
}

const (
	// What the store uses of a partition: all is read when it is mounted.
	mtdUse       = 512 << 10
	mtdUseBlocks = 8
)

// mtd opens the store's partition, and takes from its start what a store is
// good for. It does not wait for one that is not there: awaitStore has.
func (h *hardware) mtd(c *config.Config) (nvm.Medium, error) {
	m, err := openMTD(c.Store.MTD)
	if err != nil {
		return nil, err
	}
	h.open = append(h.open, m)
	g := m.Geometry()
	use := storePart(g)
	if err := c.StoreRoom(use, int64(g.Page), int64(g.Erase)); err != nil {
		return nil, fmt.Errorf("%s: %w", m, err)
	}
	return nvm.Section(m, 0, use)
}

// storePart is how many bytes of a partition the store uses.
func storePart(g nvm.Geometry) int64 {
	return min(g.Size, max(mtdUse, mtdUseBlocks*int64(g.Erase)))
}

func openMTD(name string) (*nvm.MTD, error) {
	if !strings.HasPrefix(name, "/") {
		path, err := nvm.FindMTD(name)
		if err != nil {
			return nil, err
		}
		name = path
	}
	return nvm.OpenMTD(name)
}
