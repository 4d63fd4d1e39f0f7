package qemu

import "testing"

func TestParseStat(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint64 // 0 = refused
	}{
		{"17 (qemu-system-arm) S 1 17 17 0 -1 4194304 9 8 7 6 120 34 1 2 20 0 4 0 99\n", 154},
		{"17 (a) S ) R 1 17 17 0 -1 4194304 9 8 7 6 1 0 1 2 20 0 4 0 99\n", 1},
		{"17 (qemu-system-arm) S 1 17 17", 0},
		{"17 (q) S 1 17 17 0 -1 4194304 9 8 7 6 -120 34 1 2 20 0 4 0 99\n", 0},
		{"", 0},
	} {
		got, err := parseStat([]byte(tt.text))
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("parseStat(%q) = %d, %v; want %d", tt.text, got, err, tt.want)
		}
	}
}
