package robustness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk that can lose power is a file system of its own in a file, behind a loop device. Linux can be told to end a file system
// as it is on its device at that moment: what was written and not yet synchronised is gone, as after a power failure.

// shutDown is EXT4_IOC_SHUTDOWN, and withoutFlush its argument EXT4_GOING_FLAGS_NOLOGFLUSH.
const shutDown, withoutFlush = 0x8004587D, 2

// mountDisks puts a disk below `folder` for each member, where the suite has the member's data.
func mountDisks(t *testing.T, folder string, members int) {
	for member := range members {
		path := filepath.Join(folder, fmt.Sprintf("member-%d", member))
		run(t, "mkdir", "-p", path)
		run(t, "truncate", "--size=256M", image(path))
		run(t, "mkfs.ext4", "-q", image(path))
		run(t, "mount", "-o", "loop", image(path), path)
		t.Cleanup(func() { run(t, "umount", "--lazy", path) })
		run(t, "rmdir", filepath.Join(path, "lost+found"))
	}
}

func image(path string) string { return path + ".ext4" }

func run(t *testing.T, program string, arguments ...string) {
	if said, err := exec.Command(program, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", program, arguments, err, said)
	}
}

// cutPower ends the file system at `path`, and mounts it again.
func cutPower(path string) error {
	root, err := os.Open(path)
	if err != nil {
		return err
	}
	err = errors.Join(unix.IoctlSetPointerInt(int(root.Fd()), shutDown, withoutFlush), root.Close())
	if err == nil {
		err = exec.Command("umount", path).Run()
	}
	if err == nil {
		err = exec.Command("mount", "-o", "loop", image(path), path).Run()
	}
	if err != nil {
		return fmt.Errorf("a power failure of %s: %w", path, err)
	}
	return nil
}
