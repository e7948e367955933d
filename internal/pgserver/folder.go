package pgserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	folderPattern = "outbox-pg-*"
	// maxFolder keeps "<folder>/.s.PGSQL.65535" within the 104 bytes that
	// the narrowest system allows for the path of a socket.
	maxFolder = 85
)

// folder is a private directory that belongs to this process for as long as
// the lock on it is held. The lock, unlike a process id in its name, cannot be
// mistaken for that of another container or of a later process.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a directory that uid can reach and owns, after removing those
// of owners that died.
func newFolder(as account) (*folder, error) {
	base, err := folderBase(as)
	if err != nil {
		return nil, err
	}
	removeStale(base)
	for {
		path, err := os.MkdirTemp(base, folderPattern)
		if err != nil {
			return nil, fmt.Errorf("making a folder for PostgreSQL: %w", err)
		}
		lock, err := lockFolder(path)
		if errors.Is(err, errFolderGone) {
			continue
		}
		if err == nil {
			err = as.own(path)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("preparing the folder for PostgreSQL: %w", err), os.RemoveAll(path))
		}
		return &folder{path: path, lock: lock}, nil
	}
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	return errors.Join(err, f.lock.Close())
}

// errFolderGone: another process took the folder for a stale one in the moment
// before it was locked.
var errFolderGone = errors.New("the folder was removed")

func lockFolder(path string) (*os.File, error) {
	dir, err := os.Open(path) // #nosec G304 -- made by newFolder or found by its pattern
	if errors.Is(err, os.ErrNotExist) {
		return nil, errFolderGone
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errFolderGone, dir.Close())
	}
	locked, errLocked := dir.Stat()
	named, errNamed := os.Stat(path)
	if errLocked != nil || errNamed != nil || !os.SameFile(locked, named) {
		return nil, errors.Join(errFolderGone, dir.Close())
	}
	return dir, nil
}

// removeStale removes the folders whose owner is gone; those that are in use
// or belong to another user are left alone. A server that outlived its owner
// notices that its folder is gone, and ends.
func removeStale(base string) {
	paths, err := filepath.Glob(filepath.Join(base, folderPattern))
	if err != nil {
		return
	}
	for _, path := range paths {
		lock, err := lockFolder(path)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(path)
		_ = lock.Close()
	}
}

// folderBase returns a directory for temporary files whose path is short
// enough for a socket and which as can reach.
func folderBase(as account) (string, error) {
	for _, base := range []string{os.TempDir(), "/tmp"} {
		if len(filepath.Join(base, folderPattern))+10 <= maxFolder && as.canReach(base) {
			return base, nil
		}
	}
	return "", fmt.Errorf("neither TMPDIR=%q nor /tmp is a folder with a short path that user %q can reach", os.TempDir(), as.name)
}
