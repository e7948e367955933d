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
	opts := &slog.HandlerOptions{Level: logLevels[f.LogLevel]}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
