package main

import (
	"fmt"
	"io"
	"runtime/debug"
)

// versionCmd is "dispatcher version".
type versionCmd struct {
	JSON bool `noenv:"" help:"Print JSON."`
}

// buildVersion is what the linker recorded.
type buildVersion struct {
	// Version is the module's version, or "(devel)".
	Version string `json:"version"`
	// Revision is the commit, empty for a build outside a repository.
	Revision string `json:"revision,omitempty"`
	// Time is when that commit was made, RFC 3339.
	Time string `json:"time,omitempty"`
	// Modified is set when the work tree differed from the commit.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform,omitempty"`
}

func readVersion() buildVersion {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return buildVersion{Version: "unknown"}
	}
	v := buildVersion{Version: info.Main.Version, Go: info.GoVersion}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	var goos, goarch string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "GOOS":
			goos = s.Value
		case "GOARCH":
			goarch = s.Value
		}
	}
	if goos != "" {
		v.Platform = goos + "/" + goarch
	}
	return v
}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	return c.print(a.stdout)
}

func (c *versionCmd) print(w io.Writer) error {
	v := readVersion()
	if c.JSON {
		return writeJSON(w, v)
	}
	line := "dispatcher " + v.Version
	if v.Revision != "" {
		line += fmt.Sprintf(" (commit %.12s)", v.Revision)
	}
	_, err := fmt.Fprintf(w, "%s %s %s\n", line, v.Go, v.Platform)
	return err
}
