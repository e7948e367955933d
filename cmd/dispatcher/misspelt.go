package main

import (
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ownPrefix begins every variable that is ours alone.
const ownPrefix = "OUTBOX_"

// warnOfMisspelt logs each variable that looks like a setting of ours and is
// none of any command, in the order of their names. Values are not shown.
func (e *environment) warnOfMisspelt(model *kong.Application, logger *slog.Logger) {
	known := map[string]bool{}
	for _, command := range model.Leaves(false) {
		for _, flag := range command.Flags {
			for _, name := range variables(flag) {
				known[name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.values)) {
		if !strings.HasPrefix(name, ownPrefix) || known[name] {
			continue
		}
		const what = "this variable is no setting and has no effect"
		if near := nearest(name, slices.Sorted(maps.Keys(known))); near != "" {
			logger.Warn(what, "variable", name, "nearest", near)
		} else {
			logger.Warn(what, "variable", name)
		}
	}
}

// nearest returns the name that takes the fewest edits to reach, if they are
// two (letters that changed places) or, in a longer name, few.
func nearest(name string, among []string) string {
	best, fewest := "", max(2, (len(name)-len(ownPrefix))/3)+1
	for _, candidate := range among {
		if n := edits(name, candidate); n < fewest {
			best, fewest = candidate, n
		}
	}
	return best
}

// edits is the Levenshtein distance of two texts, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
