// Pgbindir prints the folder of the PostgreSQL server binaries that tests, demo
// and bench will use, or fails with how to get them.
package main

import (
	"fmt"
	"os"

	"github.com/outbox-dispatcher/outbox/internal/pgserver"
)

func main() {
	dir, err := pgserver.FindBindir()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
