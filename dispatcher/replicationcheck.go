package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// otherSource ends what is told about a server that does not do.
const otherSource = ", or choose another wake source"

// check looks for what the server would report late, as something else, or not at
// all.
func (r *Replication) check(ctx context.Context, plain *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenConnectTimeout)
	defer cancel()
	var standbys string
	var inserts *bool
	var tables bool
	err := plain.QueryRow(ctx, `select current_setting('synchronous_standby_names'),
		(select pubinsert from pg_publication where pubname = $1),
		exists (select from pg_publication_tables where pubname = $1)`, r.Publication).Scan(&standbys, &inserts, &tables)
	switch {
	case err != nil:
		return fmt.Errorf("look for the publication: %w", err)
	case inserts == nil:
		return r.noPublication()
	case !*inserts || !tables:
		return fmt.Errorf("publication %q publishes no inserts of any table: run 'dispatcher migrate up' with the --wake of the dispatchers", r.Publication)
	case strings.Contains(standbys, "*"):
		// The server would take our confirmations for those of a standby that has
		// stored the data, and commits would wait for them.
		return errors.New("synchronous_standby_names contains *, so that the server would count the dispatcher as a synchronous standby: list the names of the standbys there" + otherSource)
	default:
		return nil
	}
}

func (r *Replication) noPublication() error {
	return fmt.Errorf("there is no publication %q in database %q: run 'dispatcher migrate up' with the --wake of the dispatchers", r.Publication, r.Config.Database)
}

// explain says what the server lacks when it refused something, and what to do.
// Nil stays nil.
func (r *Replication) explain(verb string, err error) error {
	var refusal *pgconn.PgError
	if err == nil || !errors.As(err, &refusal) {
		return wrap(verb, err)
	}
	var text string
	switch refusal.Code {
	case "08P01", "42601": // protocol violation; the command is no SQL
		text = "replication needs a direct connection, and a pooler or proxy is in between: give the address of the server itself"
	case "42501": // insufficient privilege
		text = fmt.Sprintf("role %q may not replicate: run 'alter role ... replication' (a managed service has a role to grant for it, such as rds_replication)", r.Config.User)
	case "42704": // undefined object
		return fmt.Errorf("%w (%w)", r.noPublication(), refusal)
	case "53300": // too many connections
		text = "the server has no walsender or no connection left: raise max_wal_senders or max_connections, or end what holds them"
	case "53400": // configuration limit exceeded
		text = "the server has no replication slot left: raise max_replication_slots, or drop slots that nobody uses"
	case "55000", "0A000": // not in the state for it; in recovery
		text = "the server does not decode its log: set wal_level = logical and max_replication_slots above 0, restart it, and connect to the primary"
	default:
		return wrap(verb, err)
	}
	return fmt.Errorf("%s%s (%w)", text, otherSource, refusal)
}

func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, err)
}
