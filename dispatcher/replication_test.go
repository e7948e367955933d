package dispatcher

import (
	"testing"
)

const testPublication = "outbox_wake"

// publish makes the publication of a schema's inserts.
func publish(r *rig, name string) {
	r.t.Helper()
	columns := " (id)"
	if query[int](r, `select current_setting('server_version_num')::int`) < 150_000 {
		columns = ""
	}
	r.exec(`create publication ` + name + ` for table outbox` + columns + ` with (publish = 'insert')`)
}

// replication is a source for the outbox of the rig, and its publication.
func replication(r *rig) *Replication {
	r.t.Helper()
	publish(r, testPublication)
	return &Replication{
		Config: parsed(r.t, r.dsn), Publication: testPublication, Canary: "canary x",
		OnCanary: func() {}, OnCover: func() {}, OnWaiting: func(detail string) { testWriter{r.t}.Write([]byte(detail + "\n")) },
	}
}

var _ testing.TB
