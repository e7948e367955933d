package scenario

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-dispatcher/outbox/internal/natsserver"
	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

func TestGivenServersAreLeftAsTheyWere(t *testing.T) {
	ctx := t.Context()
	pg, err := pgserver.Start(ctx, pgserver.Options{TCP: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Close() })
	broker, err := natsserver.Start(natsserver.Options{StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Stop)
	given := []string{"--dsn", pg.TCPDSN(database), "--nats", broker.URL()}

	positive(t, runBench(t, append([]string{"drain", "--tasks", "500", "--rounds", "1"}, given...)...), "drain_vs_ceiling")
	positive(t, runBench(t, append([]string{"latency", "--slices", "1", "--slice", "100ms"}, given...)...), "ratio_p50")

	conn, err := pgx.Connect(ctx, pg.TCPDSN(database))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, err := conn.Query(ctx, `select nspname from pg_namespace where nspname like 'outbox_bench_%'`)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(left) > 0 {
		t.Errorf("schemas left behind: %v (%v)", left, err)
	}
	nc, err := nats.Connect(broker.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		t.Errorf("stream %s is left behind", name)
	}
	if err := names.Err(); err != nil {
		t.Error(err)
	}
}
