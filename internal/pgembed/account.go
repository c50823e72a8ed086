package pgembed

import (
	"bufio"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that runs the server. PostgreSQL refuses to run as root, so root starts it as a different user.
type account struct {
	name     string
	uid, gid uint32
	other    bool // whether it differs from the current user
}

// attributes returns the process attributes for a child that runs as a. The child starts a new session. Otherwise, Ctrl-C in a terminal,
// which is sent to the whole process group, would stop the server while its owner is still shutting down.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a.other {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// owns makes the account the owner of path.
func (a account) owns(path string) error {
	if !a.other {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// accountFor returns the user that a server runs as: the existing data's owner, if there is any data, or else the current user. If that
// user is root, accountFor returns the first available of several common users.
func accountFor(dir string) (account, error) {
	me := account{name: "uid " + strconv.Itoa(os.Geteuid()), uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())} // #nosec G115 -- ids of a Unix
	if dir != "" {
		if owner, ok := ownerOf(filepath.Join(dir, "pgdata")); ok && owner.uid != me.uid {
			if me.uid != 0 {
				return account{}, fmt.Errorf("the data in %s belongs to %s, but this process runs as %s: use another directory, or run as that user or as root",
					dir, owner.name, me.name)
			}
			return owner, nil
		}
	}
	if me.uid != 0 {
		return me, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody", "daemon"} {
		if u, err := user.Lookup(name); err == nil {
			if a, ok := asAccount(u); ok {
				return a, nil
			}
		}
	}
	return firstUser()
}

// firstUser returns the first user in /etc/passwd other than root. initdb requires the user to be listed there.
func firstUser() (account, error) {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return account{}, fmt.Errorf("find an unprivileged user: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Split(lines.Text(), ":")
		if len(field) < 4 {
			continue
		}
		if a, ok := asAccount(&user.User{Username: field[0], Uid: field[2], Gid: field[3]}); ok {
			return a, nil
		}
	}
	return account{}, fmt.Errorf("find an unprivileged user: PostgreSQL does not run as root, and this machine has no other user; add one named postgres")
}

func asAccount(u *user.User) (account, bool) {
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if errUID != nil || errGID != nil || uid == 0 {
		return account{}, false
	}
	return account{name: "user " + u.Username, uid: uint32(uid), gid: uint32(gid), other: true}, true
}

func ownerOf(path string) (account, bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return account{}, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return account{}, false
	}
	a := account{name: "uid " + strconv.Itoa(int(stat.Uid)), uid: stat.Uid, gid: stat.Gid, other: true}
	return a, true
}
