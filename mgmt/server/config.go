package server

import (
	"time"

	"baton/enclosure"
	"baton/mgmt"
	"baton/mgmt/config"
)

// The configuration is its Keeper's; here is what a request must be.

// config shows the password's hash to admins only: who has it can try
// passwords without anybody noticing.
func (s *Server) config(c *call) (any, error) {
	out := s.opt.Keeper.Config()
	if s.role(c.peer)&Admin != 0 {
		return out, nil
	}
	text, err := config.Masked([]byte(out.Text))
	if err != nil {
		return nil, &enclosure.Error{
			Code: enclosure.CodeBadConfig, What: "the text that is kept can not be read, so it is not known what of it is secret", Err: err,
			Next: "ask as an admin",
		}
	}
	out.Text = string(text)
	return out, nil
}

// maxTrial bounds how long a change of network may wait to be confirmed.
const maxTrial = 30 * time.Minute

func (s *Server) applyConfig(c *call) (any, error) {
	in, err := decode[mgmt.ConfigRequest](c)
	if err != nil {
		return nil, err
	}
	var bad badly
	bad.millis("confirm_ms", in.ConfirmMS, maxTrial)
	if err := bad.err(); err != nil {
		return nil, err
	}
	a, err := s.opt.Keeper.Apply(c.ctx, in, c.by())
	if err != nil {
		return nil, err
	}
	a.Changes, a.Restart = list(a.Changes), list(a.Restart)
	return a, nil
}

func (s *Server) confirmConfig(c *call) (any, error) {
	if _, err := decode[struct{}](c); err != nil {
		return nil, err
	}
	return answerOf(s.opt.Keeper.Confirm(c.ctx, c.by()))
}

func (s *Server) revertConfig(c *call) (any, error) {
	if _, err := decode[struct{}](c); err != nil {
		return nil, err
	}
	return answerOf(s.opt.Keeper.Revert(c.ctx, c.by()))
}

func (s *Server) backup(c *call) (any, error) {
	b, err := s.opt.Keeper.Backup(c.ctx)
	if err != nil {
		return nil, err
	}
	b.Slots, b.Hosts = list(b.Slots), list(b.Hosts)
	return b, nil
}

func (s *Server) restore(c *call) (any, error) {
	in, err := decode[mgmt.RestoreRequest](c)
	if err != nil {
		return nil, err
	}
	r, err := s.opt.Keeper.Restore(c.ctx, in, c.by())
	if err != nil {
		return nil, err
	}
	r.Changes = list(r.Changes)
	return r, nil
}

// answerOf drops the value beside an error, which dispatch would not answer
// with anyway.
func answerOf[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
