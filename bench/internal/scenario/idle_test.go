package scenario

import (
	"strings"
	"testing"
)

func TestCountStatements(t *testing.T) {
	t.Parallel()
	const log = `2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|LOG:  statement: begin
2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|LOG:  execute stmtcache_1a2b: update t set a = 1
	where id = $1
2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|DETAIL:  parameters: $1 = '7'
2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|LOG:  execute <unnamed>: select '[1] outbox-dispatcher|LOG:  statement: '
2026-01-01 00:00:00.000 UTC [11] outbox-dispatcher listen|LOG:  statement: listen "c"
2026-01-01 00:00:00.000 UTC [12] |LOG:  statement: select 1
2026-01-01 00:00:00.000 UTC [13] psql|LOG:  statement: select 2
2026-01-01 00:00:00.000 UTC [9] |LOG:  checkpoint starting: time
2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|ERROR:  canceling statement
2026-01-01 00:00:00.000 UTC [10] outbox-dispatcher|LOG:  statement: commit`
	got, err := countStatements(strings.NewReader(log), daemonName)
	if err != nil {
		t.Fatal(err)
	}
	if got != 5 {
		t.Errorf("%d statements counted, want 5", got)
	}
}
