package pgserver

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that PostgreSQL runs as. PostgreSQL refuses root, so
// root lends it another one.
type account struct {
	name string
	// credential is nil for the user of this process.
	credential *syscall.Credential
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "of this process"}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil && uid != 0 {
			return account{name: name, credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
		}
	}
	return account{}, fmt.Errorf("PostgreSQL refuses to run as root, and neither user postgres nor user nobody exists: add one, or run as another user")
}

func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Chown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// canReach reports whether another user may pass through every folder of the
// path, and make files in the last.
func (a account) canReach(path string) bool {
	if a.credential == nil {
		return true
	}
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}
