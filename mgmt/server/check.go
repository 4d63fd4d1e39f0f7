package server

import (
	"baton/enclosure"
	"baton/mgmt"
)

// check is one after the other: whoever asks for many is not to keep buses and
// slots from those who move something.
func (s *Server) check(c *call) (any, error) {
	if _, err := decode[struct{}](c); err != nil {
		return nil, err
	}
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-c.ctx.Done():
		return nil, &enclosure.Error{Code: enclosure.CodeBusy, What: "others have everything checked", Err: c.ctx.Err(), State: "nothing was changed", Next: "try again", Retry: true}
	}
	var lines []enclosure.CheckLine
	if s.opt.Check != nil {
		lines = s.opt.Check(c.ctx)
	}
	lines = append(lines, s.backend.Check(c.ctx)...)
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	return mgmt.Check{Lines: each(lines, func(l enclosure.CheckLine) mgmt.CheckLine {
		return mgmt.CheckLine{Area: l.Area, Subject: l.Subject, Level: string(l.Level), Text: l.Text, Next: l.Next}
	})}, nil
}

// atConsole is who a note of the console is by.
const atConsole = "console"

// console makes what happened at the serial console heard. Wrong passwords are
// refusals: however many there are, they do not wear the store out.
func (s *Server) console(c *call) (any, error) {
	in, err := decode[mgmt.ConsoleNote](c)
	if err != nil {
		return nil, err
	}
	switch in.What {
	case mgmt.ConsoleRefused:
		s.backend.Refuse(atConsole, enclosure.CodeForbidden, "a wrong password was typed at the console")
	case mgmt.ConsoleUnlocked:
		s.backend.Note(enclosure.Event{Kind: "console", Text: "the console was unlocked", By: atConsole})
	case mgmt.ConsoleLocked:
		s.backend.Note(enclosure.Event{Kind: "console", Text: "the console is locked", By: atConsole})
	default:
		return nil, problem(codeBad, "what: %q is none of %s, %s, %s", clip(in.What), mgmt.ConsoleUnlocked, mgmt.ConsoleLocked, mgmt.ConsoleRefused)
	}
	return nil, nil
}
