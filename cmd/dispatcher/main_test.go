package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/outbox-dispatcher/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "dispatcher-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programDir = dir
	return pgtest.Main(m)
}
