package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

// The scripts run the built program with a database of their own: empty, in
// $DATABASE_URL. Besides the commands of testscript they know
//
//	exits CODE COMMAND...   run a command that must end with this exit code
//	sql STATEMENT           run SQL on the database
func TestScripts(t *testing.T) {
	file, err := program()
	if err != nil {
		t.Fatalf("build the program: %v", err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			tb, ok := env.T().(testing.TB)
			if !ok {
				return errors.New("testscript hides the test")
			}
			env.Setenv("PATH", filepath.Dir(file)+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("DATABASE_URL", pgtest.NewEmptyDB(tb))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
			"sql":   runSQL,
		},
	})
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d\n%s%s", got, want, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

func runSQL(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: sql STATEMENT")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, args[0])
	ts.Check(err)
}
