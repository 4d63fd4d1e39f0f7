package server

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"baton/enclosure"
	"baton/enclosure/plan"
	"baton/mgmt"
	"baton/mgmt/server/servertest"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// parse reads a text of metrics with Prometheus' own parser.
func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

// value finds the sample of a family with these labels, in pairs.
func value(t *testing.T, families map[string]*dto.MetricFamily, name string, pairs ...string) float64 {
	t.Helper()
	for _, m := range families[name].GetMetric() {
		var have []string
		for _, l := range m.GetLabel() {
			have = append(have, l.GetName(), l.GetValue())
		}
		if slices.Equal(have, pairs) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() // one of them is nil
		}
	}
	t.Errorf("no %s with %q", name, pairs)
	return math.NaN()
}

func TestMetrics(t *testing.T) {
	f := servertest.New()
	socket, c := start(t, f)
	if _, err := c.Fence(t.Context(), "server1"); err != nil {
		t.Fatal(err)
	}
	_, err := c.Move(t.Context(), mgmt.MoveRequest{ID: id1, VM: "train1", Slots: []string{"gpu0"}, To: "server2", Preserve: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.MoveByID(t.Context(), "x"); err == nil {
		t.Fatal("move x")
	}
	f.Edit(func(s *enclosure.Status) {
		s.Slots[1].Blocked = "it does not answer"
		s.Slots[3].Problem = "no acknowledge"
		s.Slots[2].Memory.Preserved = plan.Unknown
		s.Slots[2].Values.Resets = math.MaxUint32
	})
	text, err := c.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := parse(t, text)
	for _, tt := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{1, "baton_info", []string{"enclosure", "rack7-io2", "version", "1.2.3", "simulated", "false"}},
		{266700, "baton_uptime_seconds", nil},
		{1, "baton_store_ok", nil},
		{480, "baton_store_free_pages", nil},
		{1, "baton_slots", []string{"state", "assigned"}},
		{1, "baton_slots", []string{"state", "blocked"}},
		{1, "baton_slots", []string{"state", "held"}},
		{1, "baton_slots", []string{"state", "fault"}},
		{0, "baton_slots", []string{"state", "free"}},
		{1, "baton_slot_link_up", []string{"slot", "gpu0"}},
		{0, "baton_slot_link_up", []string{"slot", "gpu1"}},
		{1, "baton_slot_blocked", []string{"slot", "gpu1"}},
		{1, "baton_slot_fault", []string{"slot", "gpu2"}},
		{0.3, "baton_slot_read_age_seconds", []string{"slot", "gpu0"}},
		{18, "baton_slot_generation", []string{"slot", "gpu0"}},
		{math.MaxUint32, "baton_slot_device_resets", []string{"slot", "nic0"}},
		{1, "baton_slot_memory_preserved", []string{"slot", "gpu0", "answer", "yes"}},
		{0, "baton_slot_memory_preserved", []string{"slot", "nic0", "answer", "yes"}},
		{1, "baton_slot_memory_preserved", []string{"slot", "nic0", "answer", "unknown"}},
		{1, "baton_host_fenced", []string{"host", "server1"}},
		{0, "baton_host_fenced", []string{"host", "server2"}},
		{0, "baton_warnings", nil},
		{1, "baton_moves_total", []string{"state", "done"}},
		{0, "baton_moves_total", []string{"state", "blocked"}},
		{1, "baton_fences_total", nil},
		{1, "baton_refusals_total", []string{"code", "bad-request"}},
		{0, "baton_refusals_total", []string{"code", "stale-token"}},
		{0, "baton_bus_errors_total", []string{"bus", "i2c-5"}},
		{12, "baton_store_page_writes_total", nil},
	} {
		if got := value(t, m, tt.name, tt.labels...); got != tt.want {
			t.Errorf("%s%q is %v; want %v", tt.name, tt.labels, got, tt.want)
		}
	}
	if again, err := c.Metrics(t.Context()); err != nil || again != text {
		t.Errorf("other text the second time, %v", err)
	}
	if resp, _ := raw(t, socket, request("GET", "/v1/metrics", "", "")); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("%s, %s", resp.Status, resp.Header.Get("Content-Type"))
	}
}

// TestMetricNames: names follow what Prometheus recommends, and docs/metrics.md
// has each one with its labels.
func TestMetricNames(t *testing.T) {
	var e exposition
	e.status(servertest.New().Status(t.Context()), "1.2.3")
	e.counters(servertest.New().Counters())
	var want []string
	for name, family := range parse(t, e.String()) {
		kind := strings.ToLower(family.GetType().String())
		if (kind == "counter") != strings.HasSuffix(name, "_total") || !strings.HasPrefix(name, "baton_") || !strings.HasSuffix(family.GetHelp(), ".") || len(family.GetMetric()) == 0 {
			t.Errorf("%s is a %s: %q, %d samples", name, kind, family.GetHelp(), len(family.GetMetric()))
		}
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		want = append(want, fmt.Sprintf("%s | %s | %s", name, kind, strings.Join(labels, ", ")))
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(baton_\\w+)` \\| (\\w+) \\| ([^|]*?) *\\|").FindAllStringSubmatch(string(page), -1) {
		got = append(got, fmt.Sprintf("%s | %s | %s", m[1], m[2], m[3]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("metrics\n%s\ndocs/metrics.md\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

// TestMetricText: whatever a name has in it, the text can be read and says it.
func TestMetricText(t *testing.T) {
	for _, name := range []string{"gpu0", `a"b`, `a\b`, "a\nb", "ö", "a\xffb", ""} {
		for _, v := range []float64{0, 1, -1, 1.5, 1 << 53, 123456789, 1e300, math.Inf(1)} {
			var e exposition
			e.one("baton_x", "gauge", "X.", v, "slot", name, "other", name)
			want := strings.ToValidUTF8(name, "\ufffd")
			if got := value(t, parse(t, e.String()), "baton_x", "slot", want, "other", want); got != v {
				t.Errorf("%q %v: %v in %s", name, v, got, e.String())
			}
		}
	}
}
