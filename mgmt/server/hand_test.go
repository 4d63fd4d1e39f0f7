package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/server/servertest"

	"github.com/google/go-cmp/cmp"
)

// TestHand: what people ask for by hand arrives, and its answer comes back.
func TestHand(t *testing.T) {
	f := servertest.New()
	f.NVM = enclosure.NVMReport{State: "formatted", Findings: []enclosure.NVMFinding{{Where: "store page 17", What: "torn", Grade: "damage", Repair: "erase it"}}}
	k := servertest.NewKeeper()
	_, c := serveBackend(t, f, k)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	equal := func(want, got any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}

	f.Replace("gpu1", enclosure.Parts{Engine: "8c:df:9d:00:01:99"})
	a, err := c.AdoptionOf(ctx, "gpu1")
	must(err)
	if !a.Needed || a.Adopted || a.Old.Engine != "8c:df:9d:00:01:02" || a.New.Engine != "8c:df:9d:00:01:99" || len(a.Effect) != 2 || a.Generation != "9f3c2a10-17" {
		t.Errorf("AdoptionOf = %+v", a)
	}
	token := a.Token
	a, err = c.Adopt(ctx, "gpu1", token)
	must(err)
	if a.Needed || !a.Adopted || a.Generation != "9f3c2a10-18" || a.Effect == nil {
		t.Errorf("Adopt = %+v", a)
	}
	must(c.Locate(ctx, "nic0", true))
	must(c.Power(ctx, "gpu2", mgmt.PowerRequest{Generation: "9f3c2a10-3", State: "cycle"}))
	must(c.Reset(ctx, "gpu2", mgmt.ResetRequest{Generation: "9f3c2a10-3"}))
	must(c.ForceFree(ctx, "nic0", "nic0"))

	d, err := c.Drain(ctx, "server1", mgmt.DrainRequest{ID: id1, To: "server2", WaitMS: 1000})
	must(err)
	equal(mgmt.Drained{Host: "server1", Done: true, Left: []string{}, Sets: []mgmt.DrainedSet{{VM: "train1", Slots: []string{"gpu0"}, Move: id1[:len(id1)-1] + "b", State: "done"}}}, d)

	const id2 = "0b5f6a52-3a55-4b0e-9d8a-1f2e3d4c5b70"
	f.Set(func(s *servertest.Settings) { s.End, s.Reason = enclosure.MoveBlocked, "gpu1 does not answer" })
	_, err = c.Move(ctx, mgmt.MoveRequest{ID: id2, VM: "train1", Slots: []string{"gpu0", "gpu1"}, To: "server2", Preserve: true})
	must(err)
	m, err := c.Resolve(ctx, id2, mgmt.ResolveRequest{Drop: []string{"gpu1"}})
	must(err)
	if m.State != "done" || len(m.Slots) != 1 || m.ID != id2 {
		t.Errorf("Resolve = %+v", m)
	}

	report, err := c.CheckNVM(ctx)
	must(err)
	equal(mgmt.NVMReport{State: "formatted", Token: report.Token, Findings: []mgmt.NVMFinding{{Where: "store page 17", What: "torn", Grade: "damage", Repair: "erase it"}}}, report)
	after, err := c.RepairNVM(ctx, mgmt.RepairRequest{Token: report.Token})
	must(err)
	equal(mgmt.NVMReport{State: "formatted", Token: after.Token, Findings: []mgmt.NVMFinding{}, Repaired: true, Restarting: true}, after)
	by := fmt.Sprintf("uid %d", os.Geteuid())
	eventually(t, "the restart after the repair", func() bool { return cmp.Equal(k.Restarts(), []string{"the store was repaired, by " + by}) })
	dump, err := c.DumpNVM(ctx, "gpu0")
	must(err)
	if dump.Of != "gpu0" || dump.Part != "24c256 at i2c-5/0x50" || len(dump.Image) != 256 || dump.Image[255] != 255 {
		t.Errorf("DumpNVM = %+v", dump)
	}

	records, err := c.Audit(ctx)
	must(err)
	last := records.Records[len(records.Records)-1]
	equal(mgmt.AuditRecord{Seq: last.Seq, Run: 7, UptimeMS: last.UptimeMS, Kind: "repair", Slots: []string{}, By: by, Text: "the store was repaired"}, last)

	equal([]string{
		"look at the parts of gpu1", "adopt gpu1 " + token, "locate nic0 true", "power gpu2 cycle", "reset gpu2", "force-free nic0",
		"drain server1 to server2", "move train1 [gpu0] to server2 preserve true",
		"move train1 [gpu0 gpu1] to server2 preserve true", "resolve " + id2 + " without gpu1",
		"check NVM", "repair NVM " + report.Token + " format false", "dump NVM of gpu0",
	}, f.Calls())
}

// TestConfig: a configuration is shown, checked, applied, tried and put back.
func TestConfig(t *testing.T) {
	k := servertest.NewKeeper()
	socket, c := serveBackend(t, servertest.New(), k)
	ctx := t.Context()
	is, err := c.Config(ctx)
	if err != nil || is.Version != 3 || is.Where != "store" || is.Text != servertest.ConfigText || is.Trial != nil {
		t.Fatalf("Config = %+v, %v", is, err)
	}
	other := strings.Replace(is.Text, "i2c-6\", \"address\": \"0x40\"", "i2c-6\", \"address\": \"0x41\"", 1)
	net := is.Text[:len(is.Text)-2] + `, "network": {"interface": "eth0", "address": "192.0.2.10/24", "vlan": 100}}`
	u32 := func(n uint32) *uint32 { return &n }

	// What is wrong comes with line and key, all of it.
	var p *mgmt.Problem
	_, err = c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: "{\n \"enclosure\": 7,\n \"slots\": []\n}"})
	if !errors.As(err, &p) || p.Code != "bad-configuration" || p.Status != 422 || len(p.Errors) < 3 || p.Detail != fmt.Sprintf("the configuration has %d errors", len(p.Errors)) {
		t.Fatalf("bad configuration: %v, %+v", err, p)
	}
	if !slices.Contains(p.Errors, mgmt.ConfigError{Line: 2, Key: "enclosure", Text: "is a number, want a string"}) {
		t.Errorf("errors %+v", p.Errors)
	}
	if _, err = c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: is.Text, Expect: u32(2)}); !errors.As(err, &p) || p.Code != "configuration-changed" {
		t.Errorf("other version: %v", err)
	}

	a, err := c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: other, Expect: u32(3), DryRun: true, Restart: true})
	if diff := cmp.Diff(mgmt.ConfigApplied{Version: 3, Changes: []string{"slots: other than before"}, Restart: []string{"slots: other than before"}, DryRun: true}, a); err != nil || diff != "" {
		t.Errorf("dry run: %v\n%s", err, diff)
	}
	a, err = c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: other, Expect: u32(3), Restart: true})
	if err != nil || a.Version != 4 || !a.Restarting {
		t.Errorf("apply: %+v, %v", a, err)
	}
	if got, want := k.Restarts(), []string{fmt.Sprintf("configuration 4, by uid %d", os.Geteuid())}; !slices.Equal(got, want) {
		t.Errorf("restarts %q; want %q", got, want)
	}

	a, err = c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: net, ConfirmMS: 30000})
	if err != nil || a.Trial == nil || a.Trial.LeftMS != 30000 || a.Trial.Network != "eth0 192.0.2.10/24 in VLAN 100" {
		t.Errorf("network: %+v, %v", a, err)
	}
	if _, err := c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: is.Text}); !errors.As(err, &p) || p.Code != "trial-running" {
		t.Errorf("while a trial runs: %v", err)
	}
	if is, err = c.RevertConfig(ctx); err != nil || is.Text != other || is.Trial != nil {
		t.Errorf("revert: %+v, %v", is, err)
	}
	if _, err := c.ConfirmConfig(ctx); !errors.As(err, &p) || p.Code != "not-needed" {
		t.Errorf("nothing to confirm: %v", err)
	}
	if _, err := c.ApplyConfig(ctx, mgmt.ConfigRequest{Text: net}); err != nil {
		t.Error(err)
	}
	if is, err = c.ConfirmConfig(ctx); err != nil || is.Text != net || is.Trial != nil {
		t.Errorf("confirm: %+v, %v", is, err)
	}

	b, err := c.Backup(ctx)
	if err != nil || b.Sum != b.Checksum() || b.Config != net || len(b.Slots) != 4 || b.Hosts[2] != (mgmt.BackupHost{Name: "server3", Epoch: 2}) {
		t.Errorf("backup: %+v, %v", b, err)
	}
	bad := b
	bad.Slots = nil
	if _, err := c.Restore(ctx, mgmt.RestoreRequest{Backup: bad}); !errors.As(err, &p) || p.Code != "bad-request" || p.Detail != "backup.slots: is null: give a value or leave the key out" {
		t.Errorf("a backup without slots: %v", err)
	}
	bad.Slots = []mgmt.BackupSlot{{Name: "gpu0", Generation: "9f3c2a10-40"}}
	if _, err := c.Restore(ctx, mgmt.RestoreRequest{Backup: bad}); !errors.As(err, &p) || p.Code != "bad-backup" {
		t.Errorf("a backup that was changed: %v", err)
	}
	bad.Sum = bad.Checksum()
	r, err := c.Restore(ctx, mgmt.RestoreRequest{Backup: bad})
	if diff := cmp.Diff(mgmt.Restored{Changes: []string{"gpu0: generations go on above 9f3c2a10-40, not 9f3c2a10-17"}, Restarting: true}, r); err != nil || diff != "" {
		t.Errorf("restore: %v\n%s", err, diff)
	}
	if len(k.Restarts()) != 2 {
		t.Errorf("after the restore: restarts %q", k.Restarts())
	}

	// A configuration may be larger than other bodies, up to a bound.
	for _, tt := range []struct {
		path   string
		size   int
		status int
	}{
		{"/v1/config", mgmt.MaxConfig, 422}, {"/v1/config", mgmt.MaxConfig + 1, 413},
		{"/v1/backup", mgmt.MaxConfig, 400}, {"/v1/backup", mgmt.MaxConfig + 1, 413},
		{"/v1/nvm/repair", mgmt.MaxBody, 400}, {"/v1/nvm/repair", mgmt.MaxBody + 1, 413},
	} {
		text := `{"text":"`
		body := text + strings.Repeat("x", tt.size-len(text)-2) + `"}`
		if resp, p := raw(t, socket, request("POST", tt.path, "application/json", body)); resp.StatusCode != tt.status {
			t.Errorf("POST %s of %d bytes: %d %s; want %d", tt.path, tt.size, resp.StatusCode, clip(p.Detail), tt.status)
		}
	}
}

// TestBadHand: what is not well formed of the requests that people make by
// hand; nothing comes of them.
func TestBadHand(t *testing.T) {
	f := servertest.New()
	socket, _ := start(t, f)
	for _, tt := range []struct {
		method, path, body string
		status             int
		code, detail       string
	}{
		{"POST", "/v1/slots/gpu0/adopt", `{}`, 400, "bad-request", "token: missing"},
		{"POST", "/v1/slots/gpu0/adopt", `{"token":"00000000"}`, 409, "not-needed", "its parts are those that the agent knows"},
		{"GET", "/v1/slots/gpu9/adopt", "", 404, "unknown-slot", `there is no slot "gpu9"`},
		{"POST", "/v1/slots/gpu0/locate", `{}`, 400, "bad-request", "on: missing"},
		{"POST", "/v1/slots/gpu2/power", `{"generation":"3","state":"up"}`, 400, "bad-request", `generation: generation "3": want eight hex digits, a dash and a decimal counter, as in 9f3c2a10-17; state: "up" is none of on, off, cycle`},
		{"POST", "/v1/slots/gpu2/power", `{"generation":"9f3c2a10-2","state":"off"}`, 409, "generation-changed", "generation is 3, not 2"},
		{"POST", "/v1/slots/gpu0/power", `{"generation":"9f3c2a10-17","state":"off"}`, 409, "wrong-state", "it is with server1: power is switched in a slot that is cut only"},
		{"POST", "/v1/slots/gpu2/reset", `{}`, 400, "bad-request", "generation: missing"},
		{"POST", "/v1/slots/gpu2/reset", `{"generation":"x"}`, 400, "bad-request", `generation: generation "x": want eight hex digits, a dash and a decimal counter, as in 9f3c2a10-17`},
		{"POST", "/v1/slots/gpu0/release", `{"mode":"keep","typed":"gpu0"}`, 400, "bad-request", "vm: missing; typed: is for mode force-free only"},
		{"POST", "/v1/slots/gpu0/release", `{"mode":"force-free","typed":"gpu1"}`, 400, "bad-request", `typed: "gpu1" is not "gpu0": have a person type the slot's name`},
		{"POST", "/v1/slots/gpu0/release", `{"mode":"force-free","typed":"gpu0","vm":"train1"}`, 400, "bad-request", "mode force-free is for the slot of the path alone, and takes typed only"},
		{"POST", "/v1/moves/7/resolve", `{"drop":[]}`, 400, "bad-request", `id: UUID "7": want the form 6ba7b810-9dad-41d1-80b4-00c04fd430c8; drop: names no slot`},
		{"POST", "/v1/moves/" + id1 + "/resolve", `{"drop":["gpu0"]}`, 404, "unknown-move", "no move " + id1 + " is remembered"},
		{"POST", "/v1/hosts/server1/drain", `{"id":"` + id1 + `"}`, 400, "bad-request", "give to, the host that takes the slots, or release, and not both"},
		{"POST", "/v1/hosts/server1/drain", `{"id":"` + id1 + `","to":"server2","release":"free"}`, 400, "bad-request", "give to, the host that takes the slots, or release, and not both"},
		{"POST", "/v1/hosts/server1/drain", `{"id":"` + id1 + `","release":"keep"}`, 400, "bad-request", `release: "keep" is none of hold, free`},
		{"POST", "/v1/hosts/server1/drain", `{"id":"` + id1 + `","to":"server1","wait_ms":-1}`, 400, "bad-request", "wait_ms: -1 is outside 0..120000; to: is the host that is drained"},
		{"POST", "/v1/hosts/server1/drain", `{"id":"` + id1 + `","to":"server3"}`, 409, "host-fenced", "host server3 is fenced: never unfenced since the store was formatted"},
		{"POST", "/v1/hosts/server9/drain", `{"id":"` + id1 + `","release":"free"}`, 404, "unknown-host", `there is no host "server9"`},
		{"GET", "/v1/nvm/dump", "", 400, "bad-request", "of: missing: store, or a slot's name"},
		{"GET", "/v1/nvm/dump?of=gpu9", "", 404, "unknown-slot", `there is no slot "gpu9"`},
		{"POST", "/v1/nvm/repair", `{"token":"x"}`, 409, "not-needed", "there is nothing to repair"},
		{"POST", "/v1/config", `{"text":"{}","expect":-1,"confirm_ms":1}`, 400, "bad-request", "expect: is -1, want a whole number from 0 to 4294967295"},
		{"POST", "/v1/config", `{"text":"{}","confirm_ms":3600001}`, 400, "bad-request", "confirm_ms: 3600001 is outside 0..3600000"},
		{"POST", "/v1/config/confirm", `{"version":1}`, 400, "bad-request", "version: unknown key; known here: "},
		{"POST", "/v1/config/revert", "", 409, "not-needed", "no change of network waits to be confirmed"},
		{"POST", "/v1/backup", `{"backup":{"format":2,"enclosure":"e","incarnation":"9f3c2a10","config":"{}","slots":[],"hosts":[],"sum":""}}`, 422, "bad-backup", "the backup has format 2; this agent knows 1"},
	} {
		t.Run(tt.path+" "+tt.body, func(t *testing.T) {
			contentType := ""
			if tt.body != "" {
				contentType = mgmt.MediaTypeJSON
			}
			_, p := raw(t, socket, request(tt.method, tt.path, contentType, tt.body))
			if p.Status != tt.status || p.Code != tt.code || p.Detail != tt.detail {
				t.Errorf("%d %s\n%s\nwant %d %s\n%s", p.Status, p.Code, p.Detail, tt.status, tt.code, tt.detail)
			}
		})
	}
	if calls := f.Calls(); len(calls) > 0 {
		t.Errorf("operations got through: %q", calls)
	}
}

// TestRefusalsAreRecorded: what the interface refuses by itself the enclosure
// is told, by whom and why; what the enclosure refused it knows already.
func TestRefusalsAreRecorded(t *testing.T) {
	f := servertest.New()
	socket, _ := start(t, f)
	for _, r := range []struct{ method, path, body string }{
		{"POST", "/v1/nowhere", ""}, {"DELETE", "/v1/slots", ""}, {"POST", "/v1/moves", `{"id":1}`}, {"POST", "/v1/moves", `{"id":2}`},
		{"POST", "/v1/hosts/server9/fence", ""}, // the enclosure's
		{"POST", "/v1/config", `{"text":"{}"}`}, // the keeper's
	} {
		if resp, _ := raw(t, socket, request(r.method, r.path, mgmt.MediaTypeJSON, r.body)); resp.StatusCode < 400 {
			t.Errorf("%s %s: %s", r.method, r.path, resp.Status)
		}
	}
	var got []string
	records, _ := f.Audit()
	for _, r := range records {
		if r.Kind == "refused" {
			got = append(got, fmt.Sprint(r.By, " ", r.Code, " ", max(r.Count, 1)))
		}
	}
	by := fmt.Sprintf("uid %d ", os.Geteuid())
	if diff := cmp.Diff([]string{by + "no-such-route 1", by + "method-not-allowed 1", by + "bad-request 2"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAnswersAreWhole: lists are never null, whatever the enclosure returns.
func TestAnswersAreWhole(t *testing.T) {
	for _, v := range []any{
		wireAdoption(enclosure.Adoption{}), wireDrained(enclosure.Drained{Sets: []enclosure.DrainedSet{{}}}), wireRecord(enclosure.AuditRecord{}),
		wireReport(enclosure.NVMReport{}), wireSlot(enclosure.SlotStatus{}), wireHost(enclosure.HostStatus{}), wireMove(enclosure.Move{}), wireAttached(enclosure.Attached{}),
	} {
		text, err := json.Marshal(v)
		if err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%T: %s, %v", v, text, err)
		}
	}
}

// TestMethods: a path takes the methods that the table has for it.
func TestMethods(t *testing.T) {
	socket, _ := start(t, servertest.New())
	for path, want := range map[string]string{"/v1/config": "GET, POST", "/v1/slots/gpu0/adopt": "GET, POST", "/v1/nvm/repair": "POST", "/v1/metrics": "GET"} {
		resp, p := raw(t, socket, request("PUT", path, "", ""))
		if got := resp.Header.Get("Allow"); resp.StatusCode != http.StatusMethodNotAllowed || p.Code != mgmt.CodeMethod || got != want {
			t.Errorf("PUT %s: %s, Allow %q; want %q", path, resp.Status, got, want)
		}
	}
}
