// Package faults holds the tests that kill, freeze and cut off real processes,
// and judge by what the producers committed and what the stream holds.
package faults
