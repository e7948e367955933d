package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BindirEnv names the environment variable with the folder of the PostgreSQL
// server binaries; it wins over everything that FindBindir would find.
const BindirEnv = "OUTBOX_PG_BINDIR"

// ErrNoBinaries is wrapped by the error of [FindBindir] and [Start] when this
// machine has no PostgreSQL server binaries. Its text says how to get them.
var ErrNoBinaries = errors.New("no PostgreSQL server binaries (initdb, postgres) found")

const installHint = `install PostgreSQL 14 or newer ("apt-get install postgresql", "dnf install postgresql-server", ` +
	`"apk add postgresql" or "brew install postgresql"), or set ` + BindirEnv + ` to the folder that holds initdb`

// usualFolders are the places where packages put the server binaries without
// adding them to PATH. The star stands for the version.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/usr/local/opt/postgresql*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/pgsql/bin",
}

// FindBindir returns the folder of the PostgreSQL server binaries: that of the
// environment variable OUTBOX_PG_BINDIR, else of PATH, else of
// "pg_config --bindir", else the newest of the folders that packages use. The
// error wraps [ErrNoBinaries] when there is none.
func FindBindir() (string, error) {
	if dir := os.Getenv(BindirEnv); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("%w in %s=%q: point it to the folder that holds initdb and postgres, or unset it",
				ErrNoBinaries, BindirEnv, dir)
		}
		return dir, nil
	}
	if dir, ok := besideInitdb(); ok {
		return dir, nil
	}
	if dir, ok := fromPgConfig(); ok {
		return dir, nil
	}
	if dir, ok := newest(usualFolders); ok {
		return dir, nil
	}
	return "", fmt.Errorf("%w: %s", ErrNoBinaries, installHint)
}

// besideInitdb looks in PATH, and follows a link, because initdb looks for
// postgres in its own real folder.
func besideInitdb() (string, bool) {
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", false
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	dir := filepath.Dir(path)
	return dir, hasServer(dir)
}

func fromPgConfig() (string, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	dir := strings.TrimSpace(string(out))
	return dir, err == nil && hasServer(dir)
}

func newest(patterns []string) (string, bool) {
	var found []string
	for _, pattern := range patterns {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		found = append(found, slices.DeleteFunc(dirs, func(dir string) bool { return !hasServer(dir) })...)
	}
	if len(found) == 0 {
		return "", false
	}
	return slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) }), true
}

// version returns the first number in the path, 0 without one.
func version(dir string) int {
	digits := strings.FieldsFunc(dir, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(digits[0])
	return n
}

func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}
