package main

import (
	"io"
	"log/slog"
)

// logFlags say what is logged, to standard error.
type logFlags struct {
	LogFormat string `group:"Operation" enum:"text,json" default:"text" help:"text or json."`
	LogLevel  string `group:"Operation" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: logLevels[f.LogLevel], ReplaceAttr: flatten}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// textLogger is the one of the commands that have no flags for it.
func textLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: flatten}))
}

// flatten makes one line of an error: the database driver tells of each address
// it tried in a line of its own, which a log shows as \n and \t.
func flatten(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok && err != nil {
		a.Value = slog.StringValue(oneLine(err))
	}
	return a
}
