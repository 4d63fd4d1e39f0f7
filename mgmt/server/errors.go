package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
)

const (
	codeBad = string(enclosure.CodeBadRequest)
	maxWait = enclosure.MaxWait
)

// meaning is what a code becomes on the wire.
type meaning struct {
	status int
	title  string
}

// meanings has every code there is: those of the enclosure and those of the
// interface. docs/errors.md explains them; a test compares.
var meanings = map[string]meaning{
	string(enclosure.CodeBadRequest):        {http.StatusBadRequest, "the request is not well formed"},
	string(enclosure.CodeUnknownSlot):       {http.StatusNotFound, "no such slot"},
	string(enclosure.CodeUnknownHost):       {http.StatusNotFound, "no such host"},
	string(enclosure.CodeUnknownVM):         {http.StatusNotFound, "no such VM"},
	string(enclosure.CodeUnknownMove):       {http.StatusNotFound, "no such move"},
	string(enclosure.CodeNotAllowed):        {http.StatusForbidden, "the configuration does not let this VM run there"},
	string(enclosure.CodeSlotNotVM):         {http.StatusUnprocessableEntity, "the configuration does not give this slot to this VM"},
	string(enclosure.CodeSplitSet):          {http.StatusUnprocessableEntity, "the set is with more than one host"},
	string(enclosure.CodeCapability):        {http.StatusUnprocessableEntity, "the hardware can not do that"},
	string(enclosure.CodeGenerationChanged): {http.StatusConflict, "someone changed it since you looked"},
	string(enclosure.CodeMoveIDReused):      {http.StatusConflict, "the move ID was used for another move"},
	string(enclosure.CodeHeldForOther):      {http.StatusConflict, "held for another VM"},
	string(enclosure.CodeInUse):             {http.StatusConflict, "another VM has not released it"},
	string(enclosure.CodeBusy):              {http.StatusConflict, "another operation is under way"},
	string(enclosure.CodeFenced):            {http.StatusConflict, "the host is fenced"},
	string(enclosure.CodeStaleUnfence):      {http.StatusConflict, "a newer fence stands"},
	string(enclosure.CodeUnassignable):      {http.StatusConflict, "a cut of the slot was never confirmed"},
	string(enclosure.CodeBlocked):           {http.StatusConflict, "the slot is blocked"},
	string(enclosure.CodeStaleNonce):        {http.StatusConflict, "the VM was started again since"},
	string(enclosure.CodeValuesDiffer):      {http.StatusConflict, "the engine has other values by now"},
	string(enclosure.CodeWrongState):        {http.StatusConflict, "not in this state"},
	string(enclosure.CodeIdentity):          {http.StatusConflict, "another part than expected answers"},
	string(enclosure.CodeUnconfirmed):       {http.StatusServiceUnavailable, "the cut is not confirmed"},
	string(enclosure.CodeHardware):          {http.StatusServiceUnavailable, "the hardware does not answer as it should"},
	string(enclosure.CodeStore):             {http.StatusServiceUnavailable, "the agent's store is not usable"},
	string(enclosure.CodeForeignPeer):       {http.StatusServiceUnavailable, "an engine that is not the target's was connected"},
	string(enclosure.CodeForbidden):         {http.StatusForbidden, "not for this caller"},
	string(enclosure.CodeNotNeeded):         {http.StatusConflict, "there is nothing to do"},
	string(enclosure.CodeStaleToken):        {http.StatusConflict, "it changed since you looked"},
	string(enclosure.CodeBadConfig):         {http.StatusUnprocessableEntity, "the configuration is not valid"},
	string(enclosure.CodeConfigChanged):     {http.StatusConflict, "someone changed the configuration since you looked"},
	string(enclosure.CodeTrial):             {http.StatusConflict, "a change of network waits to be confirmed"},
	string(enclosure.CodeBadBackup):         {http.StatusUnprocessableEntity, "the backup can not be used"},
	string(enclosure.CodeInternal):          {http.StatusInternalServerError, "a bug in the agent"},

	mgmt.CodeNoRoute:    {http.StatusNotFound, "no such route"},
	mgmt.CodeMethod:     {http.StatusMethodNotAllowed, "method not allowed"},
	mgmt.CodeMediaType:  {http.StatusUnsupportedMediaType, "the body is not JSON"},
	mgmt.CodeTooLarge:   {http.StatusRequestEntityTooLarge, "the body is too large"},
	mgmt.CodePermission: {http.StatusForbidden, "not permitted"},
	mgmt.CodeOverloaded: {http.StatusServiceUnavailable, "too many at once"},
	mgmt.CodeTimeout:    {http.StatusServiceUnavailable, "it took too long"},
}

// own is a refusal by the interface itself, of which the enclosure does not
// know.
type own struct{ mgmt.Problem }

func (o *own) Error() string { return o.Problem.Error() }

// problem makes one of the interface's own; nothing was changed by it.
func problem(code, format string, args ...any) *own {
	return &own{mgmt.Problem{
		Code:   code,
		Detail: fmt.Sprintf(format, args...),
		State:  "nothing was changed",
		Retry:  code == mgmt.CodeOverloaded,
	}}
}

// toProblem turns any error into a problem document.
func toProblem(err error) *mgmt.Problem {
	var p mgmt.Problem
	if o, ok := errors.AsType[*own](err); ok {
		p = o.Problem
	} else if k, ok := errors.AsType[*mgmt.Problem](err); ok {
		p = *k
	} else if bad, ok := errors.AsType[config.Errors](err); ok {
		p = fromConfig(bad)
	} else if e, ok := errors.AsType[*enclosure.Error](err); ok {
		p = fromError(e)
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		p = mgmt.Problem{Code: mgmt.CodeTimeout, Detail: "it took longer than is allowed, or the agent is stopping", Retry: true, State: "what was begun is carried on or undone", Next: "look with 'baton status'"}
	} else {
		p = mgmt.Problem{Code: string(enclosure.CodeInternal), Detail: err.Error()}
	}
	m, ok := meanings[p.Code]
	if !ok {
		m = meanings[string(enclosure.CodeInternal)]
	}
	p.Status, p.Title, p.Type = m.status, m.title, "docs/errors.md#"+p.Code
	return &p
}

func fromError(e *enclosure.Error) mgmt.Problem {
	p := mgmt.Problem{Code: string(e.Code), Detail: e.What, Retry: e.Retry, Slot: e.Slot, State: e.State, Next: e.Next}
	if e.Where != "" {
		p.Detail += " (" + e.Where + ")"
	}
	if e.Err != nil {
		p.Detail += ": " + e.Err.Error()
	}
	p.Current = generation(e.Current)
	return p
}

func fromConfig(bad config.Errors) mgmt.Problem {
	p := mgmt.Problem{
		Code: string(enclosure.CodeBadConfig), Detail: fmt.Sprintf("the configuration has %d errors", len(bad)),
		State: "nothing was changed", Next: "correct them; 'baton config check' shows them without applying anything",
	}
	if len(bad) == 1 {
		p.Detail = "the configuration has an error"
	}
	for _, e := range bad {
		p.Errors = append(p.Errors, mgmt.ConfigError{Line: e.Line, Key: e.Key, Text: e.Text})
	}
	return p
}

// fail answers with a problem document. A refusal of the interface's own is
// told to the enclosure, which records and counts it with its own.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := toProblem(err)
	if _, ok := errors.AsType[*own](err); ok {
		peer, _ := r.Context().Value(peerKey{}).(Peer)
		s.backend.Refuse(peer.String(), enclosure.Code(p.Code), p.Detail)
	}
	if p.Status == http.StatusInternalServerError {
		s.opt.Log.Error("request failed", "request", r.Method+" "+clip(r.URL.Path), "err", err)
	}
	s.answer(w, p.Status, mgmt.MediaProblem, p)
}
