package dispatcher

import (
	"strings"
	"sync"
	"time"
)

// denials remembers permission violations. The server reports them on the
// connection, naming the subject; the message itself only goes unanswered.
type denials struct {
	mu sync.Mutex
	at map[string]time.Time
	ch chan struct{}
}

func newDenials() *denials { return &denials{ch: make(chan struct{})} }

func (d *denials) note(subject string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// A violation matters to publishes in flight only; there are few subjects,
	// but they come from the tasks, so bound them.
	if d.at == nil || len(d.at) >= 1000 {
		d.at = map[string]time.Time{}
	}
	d.at[subject] = time.Now()
	close(d.ch)
	d.ch = make(chan struct{})
}

// since reports whether the subject was denied after t.
func (d *denials) since(subject string, t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[subject].After(t)
}

// beside reports whether, after t, something was denied that is no subject
// below prefix: the broker's own interface.
func (d *denials) beside(prefix string, t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for subject, at := range d.at {
		if at.After(t) && !strings.HasPrefix(subject, prefix+".") {
			return true
		}
	}
	return false
}

// next is closed at the next violation of any subject.
func (d *denials) next() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ch
}
