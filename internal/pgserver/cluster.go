package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// confName is the file with our settings, beside postgresql.conf.
const confName = "outbox.conf"

// initdb makes the cluster. Whoever can reach the socket, in a folder that only
// its owner can enter, is trusted; TCP can be reached by every user of the
// machine and so needs the password.
func (s *Server) initdb(ctx context.Context) error {
	pwfile := filepath.Join(s.folder.path, "password")
	if err := os.WriteFile(pwfile, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the password of PostgreSQL: %w", err)
	}
	if err := s.account.own(pwfile); err != nil {
		return fmt.Errorf("writing the password of PostgreSQL: %w", err)
	}
	cmd := s.command(ctx, "initdb", "--pgdata", s.data(), "--username", superuser, "--pwfile", pwfile,
		"--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb as user %q: %w: %s", s.account.name, err, strings.TrimSpace(string(out)))
	}
	conf, err := os.OpenFile(filepath.Join(s.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0) // #nosec G304 -- in our own folder
	if err != nil {
		return fmt.Errorf("writing the settings of PostgreSQL: %w", err)
	}
	_, err = fmt.Fprintf(conf, "include '%s'\n", confName)
	if err := errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("writing the settings of PostgreSQL: %w", err)
	}
	return nil
}

// writeConfig writes a file of its own that postgresql.conf includes, so that a
// second call replaces the first. Settings on the command line would also beat
// ALTER SYSTEM, which a test may want to use.
func (s *Server) writeConfig() error {
	settings := map[string]string{
		"listen_addresses":        "",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": s.folder.path,
		"wal_level":               "logical",
		"max_connections":         "300",
		"max_wal_senders":         "50",
		"max_replication_slots":   "50",
		"log_line_prefix":         "%m [%p] %d %a ",
		"log_checkpoints":         "off",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
	if s.options.TCP {
		settings["listen_addresses"] = "127.0.0.1"
	}
	if !s.options.Fsync {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
	}
	maps.Copy(settings, s.options.Settings)

	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(settings[name]))
	}
	conf := filepath.Join(s.data(), confName)
	if err := os.WriteFile(conf, []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("writing the settings of PostgreSQL: %w", err)
	}
	if err := s.account.own(conf); err != nil {
		return fmt.Errorf("writing the settings of PostgreSQL: %w", err)
	}
	return nil
}
