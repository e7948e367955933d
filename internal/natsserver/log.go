package natsserver

import (
	"errors"
	"fmt"
	"sync"
)

// firstErrors is a server log of which only the first errors are kept: they
// tell why a server did not start.
type firstErrors struct {
	// fatal is closed when the server says that it cannot go on.
	fatal chan struct{}

	mu   sync.Mutex
	errs []error
	gone bool
}

func (f *firstErrors) keep(err error) {
	// The log of a server that runs for hours must not grow.
	const enough = 8
	if len(f.errs) < enough {
		f.errs = append(f.errs, err)
	}
}

func (f *firstErrors) reason() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) == 0 {
		return errors.New("the server does not say why")
	}
	return errors.Join(f.errs...)
}

// Errorf keeps one of the first errors.
func (f *firstErrors) Errorf(format string, v ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep(fmt.Errorf(format, v...))
}

// Fatalf keeps the error that ends the server. It does not end the process.
func (f *firstErrors) Fatalf(format string, v ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep(fmt.Errorf(format, v...))
	if !f.gone {
		f.gone = true
		close(f.fatal)
	}
}

// Noticef ignores a notice.
func (f *firstErrors) Noticef(string, ...any) {}

// Warnf ignores a warning.
func (f *firstErrors) Warnf(string, ...any) {}

// Debugf ignores a debug line.
func (f *firstErrors) Debugf(string, ...any) {}

// Tracef ignores a trace line.
func (f *firstErrors) Tracef(string, ...any) {}
