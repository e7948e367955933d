package main

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// applicationName begins the application_name of our sessions, unless the user
// chose another.
const applicationName = "outbox-dispatcher"

// What a session is for, at the end of its application_name. Those that claim
// tasks have none of these.
const (
	listenSuffix  = " listen" // one for each dispatcher that listens
	statusSuffix  = " status"
	migrateSuffix = " migrate"
)

const (
	// maxSessionName is what PostgreSQL keeps of a name.
	maxSessionName = 63
	// maxSchemaLabel and the longest suffix leave 30 bytes to the user's name.
	maxSchemaLabel = 24
)

// sessionName is the application_name of a session on the outbox in schema. It
// is the only thing about a session that every role may see, so it says all
// that "dispatcher status" needs to count the dispatchers of one outbox.
func sessionName(base, schema, suffix string) string {
	label := schema
	// The server replaces other characters, and two schemas must not become
	// one.
	if len(schema) > maxSchemaLabel || strings.ContainsFunc(schema, func(r rune) bool { return r < ' ' || r > '~' }) {
		sum := sha256.Sum256([]byte(schema))
		label = hex.EncodeToString(sum[:maxSchemaLabel/2])
	}
	if room := maxSessionName - len(" ") - maxSchemaLabel - len(migrateSuffix); len(base) > room {
		base = strings.ToValidUTF8(base[:room], "")
	}
	return base + " " + label + suffix
}
