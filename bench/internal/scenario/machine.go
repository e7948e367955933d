package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/procfs"
)

// machine is where and with what was measured. Figures of two machines, or of
// one machine under other loads, do not compare.
type machine struct {
	OS     string `json:"os"`
	CPU    string `json:"cpu,omitempty"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory,omitempty"`
	// Load is the load average of the last minute before the start: other
	// work on the machine.
	Load       float64 `json:"load"`
	Go         string  `json:"go"`
	Module     string  `json:"module"`
	PostgreSQL string  `json:"postgresql"`
	NATS       string  `json:"nats"`
}

// readMachine describes the machine. What the system does not tell is left
// out.
func readMachine(ctx context.Context) machine {
	m := machine{
		OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), Module: moduleVersion(ctx),
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return m
	}
	if info, err := fs.CPUInfo(); err == nil && len(info) > 0 {
		m.CPU = info[0].ModelName
	}
	if mem, err := fs.Meminfo(); err == nil && mem.MemTotalBytes != nil {
		m.Memory = fmt.Sprintf("%.1f GB", float64(*mem.MemTotalBytes)/1e9)
	}
	if load, err := fs.LoadAvg(); err == nil {
		m.Load = load.Load1
	}
	return m
}

// moduleVersion asks git if the build did not record a commit, which "go run"
// never does.
func moduleVersion(ctx context.Context) string {
	version, commit := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	if commit == "" {
		if out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output(); err == nil {
			commit = strings.TrimSpace(string(out))
		}
	}
	if commit != "" && !strings.Contains(version, commit[:min(12, len(commit))]) {
		version += fmt.Sprintf(" (commit %.12s)", commit)
	}
	return version
}

func (m machine) settings() []setting {
	cpu := fmt.Sprintf("%d cores", m.Cores)
	if m.CPU != "" {
		cpu += " of " + m.CPU
	}
	if m.Memory != "" {
		cpu += ", " + m.Memory
	}
	return []setting{
		{"machine", fmt.Sprintf("%s, %s, load before %.2f", m.OS, cpu, m.Load)},
		{"versions", fmt.Sprintf("PostgreSQL %s, nats-server %s, %s", m.PostgreSQL, m.NATS, m.Go)},
		{"module", m.Module},
	}
}
