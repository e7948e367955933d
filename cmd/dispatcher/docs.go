package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// docsCmd is "dispatcher docs": the configuration table of the README, made
// from the same struct tags as the help.
type docsCmd struct{}

// Run prints the reference.
func (docsCmd) Run(k *kong.Kong, a *app) error {
	_, err := io.WriteString(a.stdout, configTable(k.Model))
	return err
}

// configTable lists every flag that is also a variable, by group.
func configTable(model *kong.Application) string {
	var groups []string
	rows := map[string][]string{}
	seen := map[string]bool{}
	for _, command := range model.Leaves(true) {
		for _, flag := range command.Flags {
			if seen[flag.Name] || len(variables(flag)) == 0 {
				continue
			}
			seen[flag.Name] = true
			group := "Other"
			if flag.Group != nil {
				group = flag.Group.Title
			}
			if !slices.Contains(groups, group) {
				groups = append(groups, group)
			}
			rows[group] = append(rows[group], configRow(flag))
		}
	}
	var b strings.Builder
	for _, group := range groups {
		fmt.Fprintf(&b, "**%s**\n\n| flag | variable | default | meaning |\n| --- | --- | --- | --- |\n%s\n",
			group, strings.Join(rows[group], ""))
	}
	return b.String()
}

func configRow(flag *kong.Flag) string {
	names := variables(flag)
	for i := range names {
		names[i] = "`" + names[i] + "`"
	}
	value := ""
	if flag.HasDefault && flag.Default != "" {
		value = "`" + flag.Default + "`"
	}
	meaning := flag.Help
	if limits := flag.Tag.Get("range"); limits != "" {
		meaning += " Range: " + strings.Replace(limits, "..", " to ", 1) + "."
	}
	return fmt.Sprintf("| `--%s` | %s | %s | %s |\n", flag.Name, strings.Join(names, ", "), value, strings.ReplaceAll(meaning, "|", `\|`))
}
