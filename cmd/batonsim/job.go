package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"baton/sim/control"
)

// job is what a server is to run: a VM whose guest trains on one device.
type job struct {
	VM              string           `json:"vm"`
	Slot            string           `json:"slot"`
	Checkpoint      string           `json:"checkpoint"`       // path of a file that all servers see
	CheckpointEvery uint64           `json:"checkpoint_every"` // steps
	StepTime        control.Duration `json:"step_time"`
	ProofEvery      control.Duration `json:"proof_every"` // between two proofs of life; 10s
	Wait            control.Duration `json:"wait"`        // for agent, link and answers; 10s
	Steps           uint64           `json:"steps"`       // of all servers together; 0 = no end
}

func readJob(path string) (job, error) {
	j := job{CheckpointEvery: 100, StepTime: control.Duration(10 * time.Millisecond),
		ProofEvery: control.Duration(10 * time.Second), Wait: control.Duration(10 * time.Second)}
	text, err := os.ReadFile(path)
	if err != nil {
		return j, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return j, fmt.Errorf("job %s: %w", path, err)
	}
	var errs []error
	for key, missing := range map[string]bool{
		"vm": j.VM == "", "slot": j.Slot == "", "checkpoint": j.Checkpoint == "", "checkpoint_every": j.CheckpointEvery == 0,
		"step_time": j.StepTime <= 0, "proof_every": j.ProofEvery <= 0, "wait": j.Wait <= 0,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("job %s: %s is missing or zero", path, key))
		}
	}
	return j, errors.Join(errs...)
}
