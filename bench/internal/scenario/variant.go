package scenario

import "github.com/outbox-dispatcher/outbox/dispatcher"

// variant is a way in which a dispatcher learns of new tasks, with what that asks
// of the producers: migrating installs it.
type variant struct {
	name  string // in keys
	title string // in the table
	wake  dispatcher.WakeMode
	// sql changes the migrated schema; {outbox} and {schema} are its names.
	sql string
}

var (
	// none costs the producers nothing.
	none = variant{name: "none", title: "no trigger, polling", wake: dispatcher.WakePoll}
	// classic notifies with every insert: the function is the shipped one, only
	// the condition is missing.
	classic = variant{
		name: "classic", title: "classic trigger", wake: dispatcher.WakeNotify,
		sql: `
drop trigger outbox_notify on {outbox};
create trigger outbox_notify after insert on {outbox} for each statement execute function {schema}.outbox_notify()`,
	}
	// masked is the product as it is shipped.
	masked = variant{name: "masked", title: "masked trigger", wake: dispatcher.WakeNotify}
	// wal is the product that follows the write-ahead log.
	wal = variant{name: "wal", title: "no trigger, following the WAL", wake: dispatcher.WakeWAL}
)

// inTurn are the indexes of n parts that are compared, in the order of one round.
// From round to round each comes at another place, and every other round runs
// backwards, so that none always follows the same.
func inTurn(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (i + round) % n
		if round%2 == 1 {
			order[i] = n - 1 - order[i]
		}
	}
	return order
}
