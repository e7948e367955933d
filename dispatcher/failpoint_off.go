//go:build !failpoint

package dispatcher

// failpoint marks a place where the fault tests kill the process. In a
// normal build it is nothing.
func failpoint(string) {}
