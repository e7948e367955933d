package loopback

import (
	"fmt"
	"os"
	"syscall"
)

// Reserve takes a free port. The caller must Close it.
//
// The port is held by a socket that is bound but never listens: connections
// to it are refused by the kernel, the kernel hands it to nobody else, and
// SO_REUSEADDR on both sides lets the owner's listener bind beside it.
func Reserve() (*Port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port of %s: %w", Host, os.NewSyscallError("socket", err))
	}
	number, err := bind(fd)
	if err != nil {
		_ = syscall.Close(fd)
		return nil, fmt.Errorf("reserve a port of %s: %w", Host, err)
	}
	return &Port{number: number, release: func() error { return syscall.Close(fd) }}, nil
}

func bind(fd int) (int, error) {
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	inet, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("getsockname gave a %T, not an IPv4 address", name)
	}
	return inet.Port, nil
}
